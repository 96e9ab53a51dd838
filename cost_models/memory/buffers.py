"""Gathered weights and gradients on their way, at each moment of a step.

torch's FSDP (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) gathers a group into a buffer and copies out of
it. In forward the buffer lives until the next group's takes its place; in backward it is the next group's, fetched
ahead. Once a group's gradients are whole its weights go, the reduce-scatter input of the group before is freed, its own
is filled, and its gradients go. Before the first block it is the head's input that waits, which may be larger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import flag, number
from cost_models.memory.states import Sharding
from cost_models.memory.weights import BlockWeights, EndWeights, LocalWeights
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, dtype_bytes

_OVERLAPPING_BUCKETS = 2.0
"""One bucket is filled while another is reduced (DeepSpeed's overlap_comm in stage_1_and_2.py backward(); stage3.py has
one __ipg_bucket_flat_buffer, and a pipeline, whose gradients are reduced at the end, one too)."""

_GATHERED_CHUNKS = 3.0
"""torch.distributed.pipelining unshards what it will need next (schedules.py, _add_unshard_reshard)."""


@dataclass(frozen=True)
class Buffers:
    """m stage rows, bytes."""

    forward: FloatColumn
    """In the forward of a block."""
    loss: FloatColumn
    """While the loss is worked out and differentiated."""
    head: FloatColumn
    """In the backward of the head, with the gradient of its matrix."""
    leaving: FloatColumn
    """As the head's gradients leave, before the first block's backward."""
    backward: FloatColumn
    """In the first block's backward."""
    next: FloatColumn
    """In the second's; where a pipeline keeps weights gathered between micro-batches, in the last's."""
    product: FloatColumn
    """Gradients of a block's last matrices, which are made before the rest of its activations is gone."""
    block: FloatColumn
    """Gradients of a whole block, where they leave once they are whole."""
    late: FloatColumn
    """In the last block's backward, when no others keep activations."""
    end: FloatColumn
    """As the embedding's gradients leave, after all blocks."""
    optimizer: FloatColumn
    pooled: FloatColumn
    """Of the pool of the stream that gathers, which the allocator lends to no other: two groups meet there in forward,
    and one at most in backward."""


@dataclass(frozen=True)
class _Elements:
    """m stage rows: elements on one rank, before sharding."""

    whole: FloatColumn
    block: FloatColumn
    first: FloatColumn
    last: FloatColumn


def buffers(
    table: StrategyTable,
    stages: StageRows,
    weights: LocalWeights,
    block: BlockWeights,
    ends: EndWeights,
    shards: Sharding,
    *,
    element: FloatColumn,
    fresh: BoolColumn,
    accumulated: BoolColumn,
    recast: FloatColumn,
) -> Buffers:
    """Buffers of each stage row by moment.

    (n,) `element`: bytes of the compute dtype; `fresh`: no gradients exist before backward makes them; `accumulated`:
    there are several micro-batches; `recast`: bytes of a weight's copy that recomputation makes.
    """
    row = stages.row
    trained_whole = weights.trainable_dense + weights.trainable_expert
    stored = _elements(stages, weights.dense + weights.expert, block.total, ends.first, ends.last)
    trained = _elements(stages, trained_whole, block.total, ends.trainable_first, ends.trainable_last)
    fixed = _fixed_buckets(table, stages, trained_whole)
    filling = _filling_buckets(table)
    # Stage 3 has its bucket from the start, the others from the first gradient to the last; stage 1 over micro-batches.
    fixed = fixed + np.where(table.zero_stage == 3, filling, 0.0)[row]
    between = np.where((table.zero_stage == 1) & accumulated, filling, 0.0)[row]
    filling = np.where(table.zero_stage < 3, filling, 0.0)[row]
    sent, alone = _flattened(table, trained, row)
    # Whole gradients are reduced after backward, and move into the bucket as it fills.
    at_once = np.where(shards.gradients, 1.0, 0.0)[row]
    # Stage 2 copies its share of a micro-batch's gradients before it adds it to that of those before.
    added = (table.zero_stage == 2) & accumulated & (number(table, "bucket_elements") > 0)
    copied = np.where(added, dtype_bytes(table.gradient_dtype), 0.0)
    sent = sent + shards.held(copied, added, weights.trainable_dense, weights.trainable_expert, row)
    gathered = _gathered(table, stages, stored, shards, element)
    reducing = _reducing(table, stages, trained, shards, element)
    in_place = flag(table, "fused_gradient_accumulation") | (number(table, "bucket_bytes_per_gradient") > 0)
    made = _made(table, trained, shards, element, fresh, in_place, row)
    outside = _outside_buckets(table, accumulated)[row] * trained_whole
    moments = {name: fixed + outside + gathered[name] + reducing[name] for name in gathered}
    return Buffers(
        forward=moments["forward"] + between,
        loss=moments["loss"] + between,
        head=moments["head"] + made["head"] + between,
        leaving=moments["leaving"] + made["leaving"] + filling + at_once * alone,
        backward=moments["backward"] + filling,
        next=moments["next"] + filling + at_once * sent,
        product=np.where(in_place, 0.0, element)[row] * np.minimum(block.down[row], trained_whole)
        + recast[row] * trained.block,
        block=reducing["block"],
        late=moments["late"] + filling + at_once * sent,
        end=np.maximum(moments["end"] - outside + made["end"], fixed + reducing["gone"])
        + filling
        + np.maximum(at_once * sent, alone),
        optimizer=fixed,
        pooled=_pooled(table, row, stored, shards, element),
    )


def _elements(
    stages: StageRows, whole: FloatColumn, block: FloatColumn, first: FloatColumn, last: FloatColumn
) -> _Elements:
    row = stages.row
    return _Elements(
        whole,
        np.minimum(block[row], whole),
        stages.on_first(first),
        stages.on_last(last),
    )


def _gathered(
    table: StrategyTable, stages: StageRows, sizes: _Elements, shards: Sharding, element: FloatColumn
) -> dict[str, FloatColumn]:
    """Bytes of gathered weights."""
    row = stages.row
    # Groups of blocks come and go; those around them stay from their forward to their backward. All that is gathered
    # stays until the limit of live elements is reached (DeepSpeed's stage3_max_live_parameters).
    around = flag(table, "embedding_stays_gathered")[row]
    both = np.where(around, sizes.first + sizes.last, 0.0)
    live = number(table, "live_parameter_elements")[row]
    ahead = np.maximum(number(table, "gathered_blocks") - 1.0, 0.0)[row] * sizes.block
    window = number(table, "gathered_blocks")[row] * sizes.block
    # At stage 2 all that has been gathered stays, and nothing is fetched ahead in backward.
    stays = (table.zero_stage == 2)[row]
    # Between micro-batches a pipeline does not reshard (set_reshard_after_backward in pipelining/stage.py).
    pipelined = (flag(table, "pipeline_keeps_whole_gradients") & (table.pipeline_parallel_size > 1))[row]
    headless = np.where(around, sizes.whole, sizes.whole - sizes.last)
    come_and_go = {
        "forward": window + both,
        "loss": np.where(around, both, sizes.last),
        "head": np.where(around, both, sizes.last) + ahead,
        "leaving": ahead + both,
        "backward": window + both,
        "next": np.where(pipelined, sizes.whole, window + both),
        "late": np.where(pipelined, sizes.whole, ahead + np.where(around, both, sizes.first)),
        "end": np.where(pipelined, sizes.whole, np.where(around, both, sizes.first)),
    }
    stay = {
        "forward": headless + np.where(around, 0.0, sizes.block),
        "loss": sizes.whole,
        "head": sizes.whole,
        "leaving": headless,
        "backward": headless,
        "next": headless - sizes.block,
        "late": sizes.block + np.where(around, both, sizes.first),
        "end": np.where(around, both, sizes.first),
    }
    each = np.where(shards.weights, element, 0.0)[row]
    # Chunks of an interleaved pipeline are gathered whole, as many at once as the schedule allows.
    chunks = table.virtual_pipeline_size.astype(np.float64)[row]
    ends = sizes.first + sizes.last
    unsharded = ends + np.minimum(_GATHERED_CHUNKS / chunks, 1.0) * (sizes.whole - ends)
    by_chunk = pipelined & (stays | (chunks > 1))
    return {
        name: each
        * np.where(
            by_chunk,
            unsharded,
            np.where(stays, stay[name], np.minimum(np.maximum(come_and_go[name], live), sizes.whole)),
        )
        for name in come_and_go
    }


def _pooled(
    table: StrategyTable, row: IntColumn, sizes: _Elements, shards: Sharding, element: FloatColumn
) -> FloatColumn:
    """The largest buffer that forward gathers into beside a block's (FSDPCommContext.all_gather_copy_in_stream)."""
    each = np.where(shards.weights & flag(table, "reduces_on_own_stream"), element, 0.0)[row]
    ends = np.where(flag(table, "embedding_stays_gathered")[row], 0.0, np.maximum(sizes.first, sizes.last))
    return each * np.maximum(sizes.block, ends)


def _reducing(
    table: StrategyTable, stages: StageRows, sizes: _Elements, shards: Sharding, element: FloatColumn
) -> dict[str, FloatColumn]:
    """Bytes of whole gradients and of reduce-scatter inputs, where a group's gradients leave once they are whole."""
    row = stages.row
    groups = number(table, "reduction_blocks")
    active = shards.gradients & (groups > 0)
    whole = np.where(active, element, 0.0)[row]
    sent = np.where(active, number(table, "reduction_dtype_bytes"), 0.0)[row]
    more = np.where(active, groups - 1.0, 0.0)[row] * sizes.block
    # A root that goes around the blocks reduces both ends at last.
    around = flag(table, "embedding_stays_gathered")[row]
    of_head = np.where(around, whole, sent) * sizes.last
    of_block = sent * (sizes.block + more) + np.where(around, whole, 0.0) * sizes.last
    ends = np.where(around, sizes.first + sizes.last, sizes.first)
    zero = np.zeros(len(row))
    return {
        "forward": zero,
        "loss": zero,
        "head": whole * sizes.last,
        "leaving": np.where(around, whole, whole + sent) * sizes.last,
        "backward": of_head,
        "block": whole * sizes.block,
        "next": of_block,
        "late": of_block,
        "end": whole * ends + sent * (sizes.block + more),
        "gone": (whole + sent) * ends,
    }


def _made(
    table: StrategyTable,
    trained: _Elements,
    shards: Sharding,
    element: FloatColumn,
    fresh: BoolColumn,
    in_place: BoolColumn,
    row: IntColumn,
) -> dict[str, FloatColumn]:
    """Bytes of the largest gradients as autograd makes them, before they are added to what is kept or take its place.

    Under autocast a 16-bit one is cast to its weight's fp32; where a kernel adds to the kept ones there is none.
    """
    plain = ~in_place & ~(shards.gradients & (number(table, "reduction_blocks") > 0))
    kept = dtype_bytes(table.gradient_dtype)
    each = np.where(plain, element, 0.0)
    cast = np.where(plain & (kept > element), kept, 0.0)
    return {
        "head": each[row] * trained.last,
        "leaving": (each + cast)[row] * trained.last,
        "end": np.where(plain & ~fresh, kept, 0.0)[row] * trained.first,
    }


def has_replica_buckets(table: StrategyTable) -> BoolColumn:
    """(n,) whether whole gradients lie beside buckets that are reduced, or are views of them (torch's DDP)."""
    whole: BoolColumn = flag(table, "gradients_beside_buckets") & _reduces(table) & (table.zero_stage == 0)
    return whole


def _reduces(table: StrategyTable) -> BoolColumn:
    """(n,) whether there is another rank to reduce gradients with."""
    several: BoolColumn = table.data_parallel_size * table.context_parallel_size > 1
    return several


def _outside_buckets(table: StrategyTable, accumulated: BoolColumn) -> FloatColumn:
    """Bytes of a gradient beside its bucket until the last micro-batch makes it a view of it: under no_sync() autograd
    makes a new one (torch/csrc/distributed/c10d/reducer.cpp, mark_variable_ready_dense)."""
    apart = has_replica_buckets(table) & table.gradient_as_bucket_view
    return np.where(apart & accumulated, dtype_bytes(table.gradient_dtype), 0.0)


def _fixed_buckets(table: StrategyTable, stages: StageRows, trained: FloatColumn) -> FloatColumn:
    """Bytes of buckets that are as large as the gradients: copies of them, unless gradients are views."""
    copies = has_replica_buckets(table) & ~table.gradient_as_bucket_view
    each = np.where(copies, dtype_bytes(table.gradient_dtype), 0.0)
    each = each + np.where(_reduces(table), number(table, "bucket_bytes_per_gradient"), 0.0)
    return each[stages.row] * trained


def _flattened(table: StrategyTable, trained: _Elements, row: IntColumn) -> tuple[FloatColumn, FloatColumn]:
    """The copy of a bucket that is reduced (DeepSpeed's allreduce_bucket, and reduce_scatter_coalesced of stage 3), and
    that of a head which is larger than a bucket, by itself; stage 3 scatters a single tensor without."""
    size = np.where(table.zero_stage >= 1, number(table, "bucket_elements"), 0.0)[row]
    each = dtype_bytes(table.gradient_dtype)[row]
    alone = (trained.last > size) & (size > 0) & (table.zero_stage < 3)[row]
    return each * np.minimum(size, trained.whole), each * np.where(alone, trained.last, 0.0)


def _filling_buckets(table: StrategyTable) -> FloatColumn:
    """Bytes of buckets of a fixed size, whatever the model's."""
    elements = np.where((table.zero_stage >= 1) & _reduces(table), number(table, "bucket_elements"), 0.0)
    overlaps = table.overlap_communication & (table.zero_stage < 3) & (table.pipeline_parallel_size == 1)
    return elements * np.where(overlaps, _OVERLAPPING_BUCKETS, 1.0) * dtype_bytes(table.gradient_dtype)
