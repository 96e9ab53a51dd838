"""Which layers each pipeline stage holds: (strategy, stage) pairs as flat rows.

Ragged on purpose: a table mixes pipelines of 1 and of 64 stages, and flat rows cost what there is, not what a padded
rectangle would hold. Reduce over the stages of a strategy with `np.maximum.reduceat(values, rows.start)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.architecture import ModelArchitecture
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
    pipeline = table.pipeline_parallel_size
    start = np.concatenate([[0], np.cumsum(pipeline)[:-1]]).astype(np.int64)
    row = np.repeat(np.arange(len(table)), pipeline)
    return _stage_rows(model, table, row, np.arange(len(row)) - start[row], start)


def bounding_stages(model: ModelArchitecture, table: StrategyTable) -> StageRows:
    """First, second, and last stage: those that can be the fullest or the slowest where middle stages are alike.

    For sweeps over balanced layouts; what a sweep selects is scored again with `all_stages`.
    """
    pipeline = table.pipeline_parallel_size
    count = np.minimum(pipeline, 3)
    start = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64)
    row = np.repeat(np.arange(len(table)), count)
    position = np.arange(len(row)) - start[row]
    stage = np.where(position == 2, pipeline[row] - 1, position)
    return _stage_rows(model, table, row, stage, start)


def _stage_rows(
    model: ModelArchitecture, table: StrategyTable, row: IntColumn, stage: IntColumn, start: IntColumn
) -> StageRows:
    # Layers by (layout, stage): few distinct pairs, so they are counted once and gathered.
    pipelines, which = np.unique(
        np.stack([table.layers_per_stage, table.pipeline_parallel_size]), axis=1, return_inverse=True
    )
    offsets = np.concatenate([[0], np.cumsum(pipelines[1])]).astype(np.int64)
    counts = np.zeros((int(offsets[-1]), len(model.blocks)), dtype=np.int64)
    for index, (layout, size) in enumerate(pipelines.T):
        chunks = block_counts(model, table.layouts[layout])
        # chunk c lives on rank c mod pipeline
        counts[offsets[index] : offsets[index + 1]] = chunks.reshape(-1, size, len(model.blocks)).sum(axis=0)
    return StageRows(
        row=row,
        stage=stage,
        start=start,
        layers=counts[offsets[which[row]] + stage],
        first=stage == 0,
        last=stage == table.pipeline_parallel_size[row] - 1,
    )
