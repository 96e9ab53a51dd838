"""Activations of whole stages: layers times micro-batches in flight, with recomputation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import flag
from cost_models.memory.in_flight import in_flight
from cost_models.memory.loss import LossHead
from cost_models.memory.recomputation import LayerActivations
from cost_models.memory.tokens import Tokens
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable


@dataclass(frozen=True)
class StageActivations:
    """m stage rows, bytes."""

    saved: FloatColumn
    """Saved tensors of all micro-batches in flight."""
    working: FloatColumn
    """Live only in the backward of one layer, its recomputed tensors included."""
    one_layer: FloatColumn
    """Saved by one layer of one micro-batch: the end of backward."""
    pending_losses: FloatColumn
    """Micro-batches on the last stage whose loss awaits backward, besides the one under way."""
    per_layer: FloatColumn
    """(n,) saved by one middle block."""


def stage_activations(
    problem: Problem, table: StrategyTable, stages: StageRows, layers: LayerActivations, loss: LossHead, at: Tokens
) -> StageActivations:
    """Sum the layers of each stage at the depth its schedule reaches."""
    row = stages.row
    held = in_flight(problem, table, stages)
    count = stages.layers.sum(axis=1)
    checkpointed = np.where(table.is_choice("activation_checkpointing", "none"), 0, table.checkpointed_layers)[row]
    share = np.minimum(checkpointed, count) / np.maximum(count, 1)
    which = layers.which[row]
    present = stages.layers > 0
    saved = np.zeros(len(row))
    dropped = np.zeros(len(row))
    working = np.zeros(len(row))
    for kind in range(len(problem.model.blocks)):
        full, kept = layers.saved[:, kind][which], layers.kept[:, kind][which]
        saved += held.layers[:, kind] * (full - share * (full - kept))
        dropped = np.maximum(dropped, np.where(present[:, kind] & (share > 0), full - kept, 0.0))
        working = np.maximum(working, np.where(present[:, kind], layers.working[:, kind][which], 0.0))
    one_layer = np.max(np.where(present, layers.kept[which], 0.0), axis=1)
    boundary = (at.element * problem.model.hidden_size * at.count * at.residual)[row]
    sends = ~stages.last & flag(table, "keeps_pipeline_outputs")[row]
    saved += np.where(sends, held.leaving * boundary, 0.0)
    saved += np.where(stages.last, held.leaving * loss.final_norm[row], 0.0)
    if problem.workload.dropout > 0:
        mask = (problem.model.hidden_size * at.count * at.residual)[row]
        saved += np.where(stages.first, held.entering * mask, 0.0)
    pending = np.where(stages.last, held.leaving - 1.0, 0.0)
    middle = layers.kept[:, problem.model.layer_blocks[problem.model.layers // 2]][layers.which]
    return StageActivations(saved, working + dropped, one_layer, pending, middle)
