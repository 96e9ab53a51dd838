"""Gathered weights and gradient buckets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import dtype_bytes, flag, number
from cost_models.memory.states import Sharding
from cost_models.memory.weights import BlockWeights, EndWeights, LocalWeights
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable

_OVERLAPPING_BUCKETS = 2.0
"""One bucket is filled while another is reduced (DeepSpeed's overlap_comm in stage_1_and_2.py backward(); stage3.py has
one __ipg_bucket_flat_buffer, and a pipeline, whose gradients are reduced at the end, one too)."""


@dataclass(frozen=True)
class Buffers:
    """m stage rows, bytes."""

    forward: FloatColumn
    """Gathered weights in forward and at the loss, fixed buckets."""
    backward: FloatColumn
    """The same in backward, with gradients on their way to be reduced."""
    optimizer: FloatColumn


def buffers(
    table: StrategyTable,
    stages: StageRows,
    weights: LocalWeights,
    block: BlockWeights,
    ends: EndWeights,
    shards: Sharding,
    element: FloatColumn,
) -> Buffers:
    """Buffers of each stage row by moment; `element` is a byte count of the compute dtype."""
    gathered = _gathered(table, stages, weights, block, ends, shards, element)
    trained = weights.trainable_dense + weights.trainable_expert
    reducing = _reducing(table, stages, block, ends, trained, shards, element)
    fixed = _fixed_buckets(table, stages, trained)
    forward = gathered + fixed
    return Buffers(forward=forward, backward=forward + reducing, optimizer=fixed)


def _gathered(
    table: StrategyTable,
    stages: StageRows,
    weights: LocalWeights,
    block: BlockWeights,
    ends: EndWeights,
    shards: Sharding,
    element: FloatColumn,
) -> FloatColumn:
    row = stages.row
    whole = weights.dense + weights.expert
    last = np.where(stages.last, ends.last[row], 0.0)
    first = np.where(stages.first & flag(table, "embedding_stays_gathered")[row], ends.first[row], 0.0)
    # Groups of blocks come and go; those around them stay from their forward to their backward.
    window = np.maximum(number(table, "gathered_blocks") * block.total, number(table, "live_parameter_elements"))
    some = np.minimum(window[row] + last + first, whole)
    stays = shards.weights & (table.zero_stage == 2)
    elements = np.where(stays[row], whole, some)
    return np.where(shards.weights, element, 0.0)[row] * elements


def _reducing(
    table: StrategyTable,
    stages: StageRows,
    block: BlockWeights,
    ends: EndWeights,
    trained: FloatColumn,
    shards: Sharding,
    element: FloatColumn,
) -> FloatColumn:
    """Whole gradients of one block, and reduce-scatter inputs of it and of those before: the head's comes first."""
    row = stages.row
    groups = number(table, "reduction_blocks")
    active = shards.gradients & (groups > 0)
    width = number(table, "reduction_dtype_bytes")
    of_blocks = np.where(active, element + width * np.maximum(groups - 1.0, 0.0), 0.0) * block.total
    before = np.where(stages.last, np.maximum(block.total, ends.trainable_last)[row], block.total[row])
    waiting = of_blocks[row] + np.where(active, width, 0.0)[row] * before
    most = np.where(active, element + width, 0.0)[row] * trained
    result: FloatColumn = np.minimum(waiting, most)
    return result


def _fixed_buckets(table: StrategyTable, stages: StageRows, trained: FloatColumn) -> FloatColumn:
    row = stages.row
    gradient = dtype_bytes(table.gradient_dtype)
    many = table.data_parallel_size * table.context_parallel_size > 1
    elements = np.where((table.zero_stage >= 1) & many, number(table, "bucket_elements"), 0.0)
    overlaps = table.overlap_communication & (table.zero_stage < 3) & (table.pipeline_parallel_size == 1)
    buckets = np.where(overlaps, _OVERLAPPING_BUCKETS, 1.0)
    fixed = np.minimum(elements[row], trained) * (buckets * gradient)[row]
    # DDP reduces in buckets that are copies of the gradients, unless gradients are views of them.
    copies = flag(table, "gradients_beside_buckets") & many & ~table.gradient_as_bucket_view & (table.zero_stage == 0)
    beside = np.where(copies, gradient, 0.0) + np.where(many, number(table, "bucket_bytes_per_gradient"), 0.0)
    return fixed + beside[row] * trained
