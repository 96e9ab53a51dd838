"""How many micro-batches a pipeline stage holds activations of when its memory peaks, by schedule.

Counted per model chunk in whole micro-batches and weighted with the layers of each chunk, so that unequal chunks are
priced as they are. Few (layout, schedule, micro-batch count) combinations occur in a table: each is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.problem import Problem
from cost_models.stages import StageRows, block_counts
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable, code


@dataclass(frozen=True)
class InFlight:
    """m stage rows, k distinct blocks."""

    layers: tuple[FloatColumn, ...]
    """k columns of shape (m,): layers times micro-batches whose activations are held at the peak."""
    entering: FloatColumn
    """(m,) micro-batches held by the stage's first chunk."""
    leaving: FloatColumn
    """(m,) micro-batches held by the stage's last chunk; on the last stage their loss is pending."""


def depth_column(problem: Problem, table: StrategyTable) -> IntColumn:
    """Micro-batches that the schedule can tell apart, (n,): beyond the longest warm-up more change nothing, except
    under gpipe, which holds them all, and where they do not fill whole rounds of an interleaved schedule."""
    longest = 2 * table.pipeline_parallel_size * table.virtual_pipeline_size
    count = problem.micro_batches(table)
    broken = table.is_choice("pipeline_schedule", "interleaved") & (count % table.pipeline_parallel_size > 0)
    exact = broken | table.is_choice("pipeline_schedule", "gpipe")
    bounded = np.where(exact, count, np.minimum(count, longest))
    return np.where(table.pipeline_parallel_size == 1, 1, bounded)


def in_flight(problem: Problem, table: StrategyTable, stages: StageRows) -> InFlight:
    """Warm-up depth of every stage row."""
    count = depth_column(problem, table)
    alone = table.pipeline_parallel_size == 1
    schedule = np.where(alone, code("pipeline_schedule", "1f1b"), table.pipeline_schedule)
    first, which = distinct_rows([table.layers_per_stage, table.pipeline_parallel_size, schedule, count])
    model = problem.model
    answers = [
        _held_layers(
            model.layer_blocks,
            len(model.blocks),
            table.layouts[table.layers_per_stage[row]],
            int(table.pipeline_parallel_size[row]),
            int(schedule[row]),
            int(count[row]),
        )
        for row in first
    ]
    kinds = len(model.blocks)
    offsets = np.concatenate([[0], np.cumsum([len(answer) for answer in answers])]).astype(np.int64)
    columns = np.ascontiguousarray(np.concatenate(answers).T)
    rows = offsets[which][stages.row] + stages.stage
    return InFlight(
        layers=tuple(column[rows] for column in columns[:kinds]),
        entering=columns[kinds][rows],
        leaving=columns[kinds + 1][rows],
    )


@lru_cache(maxsize=4096)
def _held_layers(
    layer_blocks: tuple[int, ...], kinds: int, layout: tuple[int, ...], pipeline: int, schedule: int, count: int
) -> FloatColumn:
    """(pipeline, kinds + 2): layers times micro-batches by kind, then micro-batches of the first and the last chunk."""
    held = _held_micro_batches(schedule, pipeline, len(layout) // pipeline, count)
    blocks = block_counts(layer_blocks, kinds, layout).reshape(-1, pipeline, kinds)
    columns = np.concatenate([np.einsum("sc,csk->sk", held, blocks), held[:, :1], held[:, -1:]], axis=1)
    result: FloatColumn = columns.astype(np.float64)
    result.flags.writeable = False
    return result


def _held_micro_batches(schedule: int, pipeline: int, chunks: int, count: int) -> IntColumn:
    """Micro-batches held at the peak, shape (pipeline, chunks)."""
    stage = np.arange(pipeline)[:, None]
    chunk = np.arange(chunks)[None, :]
    if schedule == code("pipeline_schedule", "gpipe"):
        return np.full((pipeline, chunks), count)
    if schedule == code("pipeline_schedule", "interleaved"):
        # arXiv 2104.04473, section 2.2, as Megatron-Core's forward_backward_pipelining_with_interleaving has it:
        # 2(p - s - 1) + (v - 1)g chunk passes of warm-up and the one under way; g micro-batches a chunk and round.
        group = _round_micro_batches(count, pipeline)
        passes = np.minimum(2 * (pipeline - stage - 1) + (chunks - 1) * group + 1, count * chunks)
        rounds, rest = np.divmod(passes, group * chunks)
        held = rounds * group + np.clip(rest - chunk * group, 0, group)
        result: IntColumn = np.minimum(held, count)
        return result
    if schedule == code("pipeline_schedule", "zero-bubble") and chunks == 2:
        # ZB-V (arXiv 2401.10241, section 6): every stage holds what the first of 1F1B does.
        return np.full((pipeline, chunks), min(count, pipeline))
    # 1F1B (arXiv 2104.04473, section 2.2.1); ZB-H1 has the same peak (arXiv 2401.10241, table 1).
    return np.broadcast_to(np.minimum(count, pipeline - stage), (pipeline, chunks))


def _round_micro_batches(count: int, pipeline: int) -> int:
    """Micro-batches that pass a chunk before the next has its turn: as many as there are stages where that divides.

    Else the fewest more whose last round is whole or still fills the pipeline, as Megatron-Core demands of
    --microbatch-group-size-per-virtual-pipeline-stage. The rules see to it that `count` is no less than `pipeline`.
    """
    return next(size for size in range(pipeline, count + 1) if count % size == 0 or count % size >= pipeline)
