"""Which layers each pipeline stage holds: (strategy, stage) pairs as flat rows.

Ragged on purpose: a table mixes pipelines of 1 and of 64 stages, and flat rows cost what there is, not what a padded
rectangle would hold. Reduce over the stages of a strategy with `np.maximum.reduceat(values, rows.start)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.distinct import distinct_rows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable


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

    def on_first(self, values: FloatColumn) -> FloatColumn:
        """(m,): `values`, (n,), on the first stage of each strategy, 0 on the others."""
        column = np.zeros(len(self))
        column[self.start] = values
        return column

    def on_last(self, values: FloatColumn) -> FloatColumn:
        """The same on the last stage."""
        column = np.zeros(len(self))
        column[np.append(self.start[1:], len(self)) - 1] = values
        return column

    def first_with_most(self, values: FloatColumn) -> IntColumn:
        """(n,) index of the first stage row of each strategy at which `values`, (m,), are highest."""
        most = np.maximum.reduceat(values, self.start)
        at_most = np.flatnonzero(values == most[self.row])
        first: IntColumn = at_most[np.searchsorted(self.row[at_most], np.arange(len(self.start)))]
        return first


# Layouts come back in every block of a sweep; the arrays are shared, so nobody may write into them.
@lru_cache(maxsize=4096)
def block_counts(layer_blocks: tuple[int, ...], kinds: int, layout: tuple[int, ...]) -> IntColumn:
    """Layers of each of k distinct blocks in each chunk of a layout, shape (chunks, k)."""
    ends = np.cumsum(layout)
    cumulative = np.zeros((len(layer_blocks) + 1, kinds), dtype=np.int64)
    cumulative[1:] = np.cumsum(np.array(layer_blocks)[:, None] == np.arange(kinds), axis=0)
    counts: IntColumn = cumulative[ends] - cumulative[np.concatenate([[0], ends[:-1]])]
    counts.flags.writeable = False
    return counts


def all_stages(model: ModelArchitecture, table: StrategyTable) -> StageRows:
    """Every stage of every strategy. Layouts must be those of valid strategies (they place each layer once)."""
    return _stage_rows(table, lambda layout, pipeline: _held(model, layout, pipeline))


def bounding_stages(model: ModelArchitecture, table: StrategyTable) -> StageRows:
    """The first and the last of every run of stages whose chunks hold the same, both ends of the pipeline apart.

    Along a run stages cost the same and keep ever fewer micro-batches in flight: what is allocated is most on its first
    stage; what is reserved may be most on its last, where the optimizer's step takes over as the moment of the peak.
    For sweeps: the figures are those of `all_stages`.
    """
    return _stage_rows(table, lambda layout, pipeline: _bounding(_held(model, layout, pipeline)))


@dataclass(frozen=True)
class _Held:
    """Some stages of one pipeline."""

    stage: IntColumn
    chunks: IntColumn
    """(virtual, stages, k) layers of each distinct block."""
    size: int
    """Stages of the whole pipeline."""


def checkpointed_share(table: StrategyTable, row: IntColumn, layers: FloatColumn) -> FloatColumn:
    """(m,) share of a stage's layers that are checkpointed; `row` is its strategy, `layers` how many it has."""
    checkpointed = np.where(table.is_choice("activation_checkpointing", "none"), 0, table.checkpointed_layers)[row]
    share: FloatColumn = np.minimum(checkpointed, layers) / np.maximum(layers, 1.0)
    return share


def _held(model: ModelArchitecture, layout: tuple[int, ...], pipeline: int) -> _Held:
    kinds = len(model.blocks)
    # chunk c lives on rank c mod pipeline
    chunks = block_counts(model.layer_blocks, kinds, layout).reshape(-1, pipeline, kinds)
    return _Held(np.arange(pipeline), chunks, pipeline)


def _bounding(held: _Held) -> _Held:
    changes = np.ones(held.size + 1, dtype=np.bool_)
    changes[2:-2] = (held.chunks[:, 1:-2] != held.chunks[:, 2:-1]).any(axis=(0, 2))
    kept = changes[:-1] | changes[1:]
    return _Held(held.stage[kept], held.chunks[:, kept], held.size)


def _stage_rows(table: StrategyTable, held: Callable[[tuple[int, ...], int], _Held]) -> StageRows:
    """Few pairs of layout and pipeline size occur: their stages are counted once and gathered."""
    first, which = distinct_rows([table.layers_per_stage, table.pipeline_parallel_size])
    pairs = [held(table.layouts[table.layers_per_stage[row]], int(table.pipeline_parallel_size[row])) for row in first]
    counts = np.array([len(pair.stage) for pair in pairs], dtype=np.int64)
    count = counts[which]
    start = np.cumsum(count) - count
    row = np.repeat(np.arange(len(table)), count)
    # Where each row finds its stage among those of the pairs.
    place = ((np.cumsum(counts) - counts)[which] - start)[row] + np.arange(len(row))
    stage = np.concatenate([pair.stage for pair in pairs])
    last = np.concatenate([pair.stage == pair.size - 1 for pair in pairs])
    layers = np.concatenate([pair.chunks.sum(axis=0) for pair in pairs])
    return StageRows(
        row=row, stage=stage[place], start=start, layers=layers[place], first=(stage == 0)[place], last=last[place]
    )
