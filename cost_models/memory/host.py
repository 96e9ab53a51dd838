"""Memory of the host and NVMe: what is offloaded, and the peaks while a checkpoint is loaded and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import dtype_bytes
from cost_models.memory.states import Sharding, state_bytes_per_weight
from cost_models.memory.weights import HeaviestWeights
from cost_models.problem import Problem
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable

_HOST_GRADIENT_BYTES = 4.0
"""ZeRO-Offload keeps fp32 gradients beside the fp32 states on the host (arXiv 2101.06840, section 4.1)."""
_PINNED_BYTES = 2.0
"""16-bit staging of a weight on its way back to the GPU, pinned."""


@dataclass(frozen=True)
class HostNeeds:
    """n strategies, bytes a node."""

    by_part: Mapping[str, FloatColumn]
    """By HOST_PARTS."""
    nvme: FloatColumn


def host_needs(problem: Problem, table: StrategyTable, weights: HeaviestWeights, shards: Sharding) -> HostNeeds:
    """What the ranks of one node keep off the GPUs: those of the stage with most weights."""
    ranks = float(problem.cluster.gpus_per_node)

    def sharded(per_weight: FloatColumn, where: BoolColumn) -> FloatColumn:
        dense, expert = _divided(per_weight, where, shards)
        return dense * weights.trainable_dense + expert * weights.trainable_expert

    dense, expert = _divided(dtype_bytes(table.parameter_dtype), shards.weights, shards)
    stored = dense * weights.dense + expert * weights.expert
    states = table.is_choice("offload", "optimizer", "optimizer-and-parameters", "nvme")
    parameters = table.is_choice("offload", "optimizer-and-parameters", "nvme")
    nvme = table.is_choice("offload", "nvme")
    fraction = np.where(states, table.offload_fraction, 0.0)
    optimizer = sharded(fraction * (state_bytes_per_weight(problem, table) + _HOST_GRADIENT_BYTES), shards.states)
    staging = sharded(np.where(states, _PINNED_BYTES, 0.0), shards.states)
    held = np.where(parameters, stored, 0.0)
    offloaded = ranks * (optimizer + held)
    steady = np.where(nvme, 0.0, offloaded) + ranks * staging
    whole = problem.model.parameters * dtype_bytes(table.parameter_dtype)
    mine = ranks * stored
    load = np.select(
        [table.is_choice("checkpoint_loading", "rank0"), table.is_choice("checkpoint_loading", "every-rank")],
        [whole, ranks * whole],
        mine,
    )
    # A full checkpoint is gathered on one rank; a sharded one is staged shard by shard with its states.
    local_states = ranks * sharded(state_bytes_per_weight(problem, table), shards.states)
    save = np.where(table.is_choice("checkpoint_saving", "full"), whole, mine + local_states)
    parts = {"steady": steady, "load_peak": steady + load, "checkpoint_peak": steady + save}
    return HostNeeds(parts, np.where(nvme, offloaded, 0.0))


def _divided(per_weight: FloatColumn, where: BoolColumn, shards: Sharding) -> tuple[FloatColumn, FloatColumn]:
    return per_weight / np.where(where, shards.dense_ranks, 1.0), per_weight / np.where(where, shards.expert_ranks, 1.0)
