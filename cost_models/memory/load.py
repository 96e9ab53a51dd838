"""Device memory while the model and the optimizer are set up."""

from __future__ import annotations

import numpy as np

from cost_models.memory.facts import flag, stored_bytes
from cost_models.memory.states import StateBytes
from cost_models.memory.weights import HeaviestWeights
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable


def device_load_bytes(
    table: StrategyTable, stages: StageRows, weights: HeaviestWeights, states: StateBytes
) -> FloatColumn:
    """(n,) the larger of two moments: weights placed whole before they are sharded; weights with their states."""
    stored = stored_bytes(table)
    # A checkpoint that is loaded on every rank (or on one, then broadcast) lands on the device before it is sharded.
    whole = ~table.is_choice("checkpoint_loading", "sharded") & ~table.is_choice(
        "offload", "optimizer-and-parameters", "nvme"
    )
    placed = np.where(whole, stored, 0.0) * (weights.dense + weights.expert)
    # Masters are copied from weights that were flattened beside the originals (DeepSpeed's stage 1 and 2).
    flattened = flag(table, "flattens_weights") & (table.zero_stage >= 1) & (table.zero_stage < 3)
    copies = np.where(flattened, stored, 0.0) * (weights.trainable_dense + weights.trainable_expert)
    parameters = np.maximum.reduceat(states.parameters, stages.start)
    steady = np.maximum.reduceat(states.parameters + states.optimizer_states, stages.start)
    return np.maximum(parameters + placed, steady + copies)
