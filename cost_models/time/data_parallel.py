"""Exposed seconds of gradient reduction and parameter gathering.

ZeRO (arXiv 1910.02054 section 7: as much traffic as an all-reduce for stages 1 and 2, half as much again for 3); FSDP
(arXiv 2304.11277 section 3.3: gathers ahead under the computation, backward shares the link with the reduction).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from cost_models.memory.facts import stage_flags
from cost_models.problem import Problem
from cost_models.quantisation import is_quantised, mean_weight_bytes
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, dtype_bytes
from cost_models.time.cases import framework_flags
from cost_models.time.collectives import Network
from cost_models.time.rank_layout import RankLayout, ShardGroups
from cost_models.time.stage_costs import StageWeights
from cost_models.time.step_groups import StepGroups

BUCKET_PARAMETERS: Final = 40e6
"""Gradients leave in buckets of at least this many parameters (Megatron-Core, DistributedDataParallelConfig)."""


@dataclass(frozen=True)
class DataParallelTraffic:
    """Seconds on the wire of one step group, how often, and how much of a pass can hide them; columns (g,)."""

    gather: FloatColumn
    gather_tail: FloatColumn
    """What of it nothing can hide: the first layer's (or bucket's)."""
    gather_window: FloatColumn
    """Forward passes of a micro-batch under which a gather can lie."""
    gathers: FloatColumn
    reduce: FloatColumn
    """With the gathers that share the link with it in backward."""
    reduce_tail: FloatColumn
    reduce_window: FloatColumn
    """Backward passes."""
    reductions: FloatColumn
    gather_again: FloatColumn
    """In backward of micro-batches that do not reduce."""
    again_window: FloatColumn
    gathers_again: FloatColumn
    once: FloatColumn
    """Exposed whatever else happens."""


def exposed_seconds(
    traffic: DataParallelTraffic, number: IntColumn, forward: FloatColumn, backward: FloatColumn
) -> FloatColumn:
    """In one step, of strategies of the given groups with the given passes on their slowest stage."""

    def left(seconds: FloatColumn, window: FloatColumn, hiding: FloatColumn) -> FloatColumn:
        rest: FloatColumn = hiding * window[number]
        np.subtract(seconds[number], rest, out=rest)
        return rest

    exposed = np.maximum(left(traffic.gather, traffic.gather_window, forward), traffic.gather_tail[number])
    exposed *= traffic.gathers[number]
    reducing = np.maximum(left(traffic.reduce, traffic.reduce_window, backward), traffic.reduce_tail[number])
    reducing *= traffic.reductions[number]
    exposed += reducing
    if traffic.gather_again.any():
        again = np.maximum(left(traffic.gather_again, traffic.again_window, backward), 0.0)
        exposed += again * traffic.gathers_again[number]
    exposed += traffic.once[number]
    return exposed


def data_parallel_traffic(problem: Problem, groups: StepGroups, network: Network) -> DataParallelTraffic:
    """Traffic of the slowest stage's weights."""
    table, layout, count = groups.table, groups.layout, groups.micro_batches
    weight_bytes = np.where(table.is_choice("precision", "fp32"), 4.0, 2.0)
    gathered_bytes = np.full(len(table), mean_weight_bytes(problem)) if is_quantised(problem) else weight_bytes
    traffic = _traffic(table, groups.weights, layout, network, (weight_bytes, gathered_bytes))
    piped = table.pipeline_parallel_size > 1
    reductions = np.where(stage_flags(table, "reduces_every_micro_batch") & ~piped, count, 1.0)
    every_gather = stage_flags(table, "gathers_every_micro_batch")
    again = every_gather & (table.zero_stage == 3)
    kept = every_gather & ~again & piped  # gathered once, kept until the last micro-batch has passed
    share = _overlap(table, network)
    window = np.where(every_gather, share, share * _window(table, count))
    after = stage_flags(table, "reduces_after_backward")
    hides_gather = every_gather | framework_flags("hides_parameter_gather")[table.framework]
    gather_again = np.where(again, traffic.gather_again, 0.0)
    return DataParallelTraffic(
        gather=traffic.gather,
        gather_tail=traffic.gather_tail,
        gather_window=np.where(hides_gather, window, 0.0),
        gathers=np.where(every_gather, np.where(kept, 1.0, count), np.where(table.zero_stage > 0, 1.0, 0.0)),
        # In backward gathers and reductions share the link; micro-batches that do not reduce only gather.
        reduce=gather_again + traffic.reduce,
        reduce_tail=traffic.reduce_tail,
        reduce_window=np.where(after, 0.0, window),
        reductions=reductions,
        gather_again=gather_again,
        again_window=share,
        gathers_again=count - reductions,
        once=_tied_embedding_seconds(problem, table, layout, network),
    )


def _overlap(table: StrategyTable, network: Network) -> FloatColumn:
    """Share of a pass that can hide traffic."""
    coefficients = network.coefficients
    whole, sharded = (coefficients.by_framework(name) for name in ("data_parallel_overlap", "sharded_overlap"))
    share = np.where(table.zero_stage == 3, sharded[table.framework], whole[table.framework])
    return np.where(table.overlap_communication, share, 0.0)


def _window(table: StrategyTable, count: FloatColumn) -> FloatColumn:
    """Micro-batches that pass while weights are gathered (gradients reduced): one; with v chunks, a whole round but for
    the first (last) chunk, whose own traffic alone must be over (Megatron-LM, --overlap-param-gather)."""
    chunks = table.virtual_pipeline_size.astype(np.float64)
    in_round = np.minimum(count, table.pipeline_parallel_size)
    window: FloatColumn = np.maximum(1.0, in_round * (chunks - 1) / chunks)
    return window


@dataclass(frozen=True)
class _Traffic:
    gather: FloatColumn
    gather_tail: FloatColumn
    """What of it nothing can hide: the first layer's (or bucket's)."""
    gather_again: FloatColumn
    """For backward: from the second copy where there is one (hpZ, arXiv 2306.10209 section 3.2)."""
    reduce: FloatColumn
    reduce_tail: FloatColumn

    def __add__(self, other: _Traffic) -> _Traffic:
        return _Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def _traffic(
    table: StrategyTable,
    stage: StageWeights,
    layout: RankLayout,
    network: Network,
    widths: tuple[FloatColumn, FloatColumn],
) -> _Traffic:
    dense = _traffic_of(table, stage, stage.dense, stage.dense_trained, layout, layout.dense, network, widths)
    if not stage.routed.any():
        return dense
    routed = _traffic_of(table, stage, stage.routed, stage.routed_trained, layout, layout.routed, network, widths)
    return dense + routed


def _traffic_of(
    table: StrategyTable,
    stage: StageWeights,
    weights: FloatColumn,
    trained: FloatColumn,
    layout: RankLayout,
    groups: ShardGroups,
    network: Network,
    widths: tuple[FloatColumn, FloatColumn],
) -> _Traffic:
    """Weights of one kind, layer by layer where layers are sharded, else bucket by bucket.

    `widths`: bytes of a weight in the compute dtype, and as layers are gathered.
    """
    sharded = table.zero_stage > 0
    weight_bytes, stored_bytes = widths
    by_layer = stage_flags(table, "gathers_every_micro_batch")
    at_once = stage_flags(table, "reduces_after_backward")
    pieces = np.where(at_once, 1.0, _pieces(weights, stage.layers, by_layer))
    # Once a step only what the optimizer has changed is gathered.
    gathered = np.where(by_layer, weights, trained)
    held = gathered > 0
    reached = network.coefficients.by_framework("gather_bandwidth")[table.framework]
    across = (table.zero_stage == 3) & (groups.shard.at(groups.shard.nodes) > 1)
    slower = np.where(across, 1 / reached, 1.0)
    piece = gathered * np.where(by_layer, stored_bytes, weight_bytes) / pieces
    gather = np.where(sharded & held, network.all_gather(groups.shard, piece) * slower, 0.0)
    copied = np.where(held, network.all_gather(layout.secondary, piece), 0.0)
    message = trained * _gradient_bytes(table, weight_bytes) / pieces
    scattered = network.all_gather(groups.shard, message) * slower + network.all_reduce(
        groups.replicate, message / groups.shard.ranks
    )
    summed = network.all_reduce(groups.shard, message)
    reduce = np.where(trained > 0, np.where(sharded & ~at_once, scattered, summed), 0.0)
    return _Traffic(
        gather=pieces * gather,
        gather_tail=gather,
        gather_again=pieces * np.where(table.secondary_shard_size > 1, copied, gather),
        reduce=pieces * reduce,
        reduce_tail=reduce,
    )


def _gradient_bytes(table: StrategyTable, weight_bytes: FloatColumn) -> FloatColumn:
    accumulated = dtype_bytes(table.gradient_dtype)
    half = framework_flags("reduces_in_16_bit")[table.framework] & (weight_bytes < 4)
    sent: FloatColumn = np.where(half, np.minimum(accumulated, 2.0), accumulated)
    return sent


def _pieces(weights: FloatColumn, layers: FloatColumn, by_layer: BoolColumn) -> FloatColumn:
    pieces: FloatColumn = np.where(
        by_layer, np.maximum(layers, 1.0), np.maximum(1.0, np.ceil(weights / BUCKET_PARAMETERS))
    )
    return pieces


def _tied_embedding_seconds(
    problem: Problem, table: StrategyTable, layout: RankLayout, network: Network
) -> FloatColumn:
    """First and last stage add up the gradients of a matrix that both hold (arXiv 1909.08053 appendix, Megatron-LM)."""
    model = problem.model
    if not model.tied_embeddings or problem.workload.fine_tuning is not None:
        return np.zeros(len(table))
    gradient_bytes = dtype_bytes(table.gradient_dtype)
    return network.all_reduce(layout.ends, model.embedding_parameters / table.tensor_parallel_size * gradient_bytes)
