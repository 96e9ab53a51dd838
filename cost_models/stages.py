"""Which layers each pipeline stage holds: (strategy, stage) pairs as flat rows.

Ragged on purpose: a table mixes pipelines of 1 and of 64 stages, and flat rows cost what there is, not what a padded
rectangle would hold. Reduce over the stages of a strategy with `np.maximum.reduceat(values, rows.start)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.distinct import distinct_rows
from cost_models.strategy import BoolColumn, IntColumn, StrategyTable


@dataclass(frozen=True)
class StageRows:
    """m stage rows, ordered by strategy, then by stage."""

    row: IntColumn
    """(m,) index of the strategy."""
    stage: IntColumn
    """(m,) pipeline rank."""
    start: IntColumn
    """(n,) where each strategy's stages begin."""
    layers: IntColumn
    """(m, k) layers of each of the model's k distinct blocks."""
    first: BoolColumn
    """(m,) holds the embedding."""
    last: BoolColumn
    """(m,) holds the final norm, the head and the loss."""

    def __len__(self) -> int:
        return len(self.row)


def block_counts(model: ModelArchitecture, layout: tuple[int, ...]) -> IntColumn:
    """Layers of each distinct block in each chunk of a layout, shape (chunks, k)."""
    kinds = np.array(model.layer_blocks, dtype=np.int64)
    ends = np.cumsum(layout)
    cumulative = np.zeros((len(kinds) + 1, len(model.blocks)), dtype=np.int64)
    cumulative[1:] = np.cumsum(kinds[:, None] == np.arange(len(model.blocks)), axis=0)
    counts: IntColumn = cumulative[ends] - cumulative[np.concatenate([[0], ends[:-1]])]
    return counts


def all_stages(model: ModelArchitecture, table: StrategyTable) -> StageRows:
    """Every stage of every strategy. Layouts must be those of valid strategies (they place each layer once)."""
    held = _layers_held(model, table)
    return _stage_rows(table, held, np.zeros(len(held.offset), dtype=np.bool_))


def bounding_stages(model: ModelArchitecture, table: StrategyTable) -> StageRows:
    """First, second, and last stage where all stages between hold the same, so that the second stands for them; all
    stages elsewhere.

    For sweeps: the figures are those of `all_stages`.
    """
    held = _layers_held(model, table)
    return _stage_rows(table, held, held.middle_alike)


@dataclass(frozen=True)
class _LayersHeld:
    """What the stages of each distinct (layout, pipeline size) hold: few, so they are counted once and gathered."""

    which: IntColumn
    """(n,) the pair of each strategy."""
    offset: IntColumn
    """(pairs,) where its stages begin in `counts`."""
    counts: IntColumn
    """(stages, k) layers of each distinct block."""
    middle_alike: BoolColumn
    """(pairs,) whether all stages but the first and the last hold the same."""


def _layers_held(model: ModelArchitecture, table: StrategyTable) -> _LayersHeld:
    chosen, which = distinct_rows([table.layers_per_stage, table.pipeline_parallel_size])
    pairs = np.stack([table.layers_per_stage[chosen], table.pipeline_parallel_size[chosen]])
    offsets = np.concatenate([[0], np.cumsum(pairs[1])]).astype(np.int64)
    counts = np.zeros((int(offsets[-1]), len(model.blocks)), dtype=np.int64)
    alike = np.zeros(len(pairs[1]), dtype=np.bool_)
    for index, (layout, size) in enumerate(pairs.T):
        chunks = block_counts(model, table.layouts[layout])
        # chunk c lives on rank c mod pipeline
        stages = chunks.reshape(-1, size, len(model.blocks)).sum(axis=0)
        counts[offsets[index] : offsets[index + 1]] = stages
        alike[index] = bool((stages[1:-1] == stages[1:2]).all())
    return _LayersHeld(which, offsets[:-1], counts, alike)


def _stage_rows(table: StrategyTable, held: _LayersHeld, shortened: BoolColumn) -> StageRows:
    """First, second and last stage of the pairs that are shortened, every stage of the others."""
    pipeline, short = table.pipeline_parallel_size, shortened[held.which]
    count = np.where(short, np.minimum(pipeline, 3), pipeline)
    start = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64)
    row = np.repeat(np.arange(len(table)), count)
    position = np.arange(len(row)) - start[row]
    stage = np.where((position == 2) & short[row], pipeline[row] - 1, position)
    return StageRows(
        row=row,
        stage=stage,
        start=start,
        layers=held.counts[held.offset[held.which[row]] + stage],
        first=stage == 0,
        last=stage == pipeline[row] - 1,
    )
