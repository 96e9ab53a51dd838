"""Stages of the distinct pipelines of a table: what each holds, priced once and gathered by strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.stages import StageRows, checkpointed_share
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable


@dataclass(frozen=True)
class HeldLayers:
    """What some stages hold; columns (rows,)."""

    case: IntColumn
    """Layer case of the stage's strategy."""
    layers: FloatColumn
    """(rows, k) of each kind of block."""
    again: FloatColumn
    """Share of them that is recomputed."""
    stage: IntColumn
    first: BoolColumn
    last: BoolColumn

    @property
    def count(self) -> FloatColumn:
        """Layers in all."""
        total: FloatColumn = self.layers.sum(axis=1)
        return total

    def take(self, rows: IntColumn) -> HeldLayers:
        """Some of the stages."""
        return HeldLayers(**{f.name: getattr(self, f.name)[rows] for f in fields(HeldLayers)})

    def inside(self, values: FloatColumn) -> FloatColumn:
        """Sum over the layers of (cases, k) values."""
        # A plain sum over the kinds: einsum and matmul reorder additions with the number of rows.
        total: FloatColumn = self.layers[:, 0] * values[self.case, 0]
        for kind in range(1, self.layers.shape[1]):
            total += self.layers[:, kind] * values[self.case, kind]
        return total


@dataclass(frozen=True)
class PickedStages:
    """Stages of p distinct pipelines, in their order."""

    pipeline: IntColumn
    """(n,) which of the p pipelines each strategy has."""
    held: HeldLayers
    owner: IntColumn
    """Which of the p pipelines."""
    start: IntColumn
    """(p,) where each pipeline's stages begin."""
    weight: FloatColumn
    """Stages that a row stands for: also those up to the next row, which bounding stages leave out."""

    def total(self, values: FloatColumn) -> FloatColumn:
        """(p,) sum over all stages of each pipeline."""
        summed: FloatColumn = np.add.reduceat(values * self.weight, self.start)
        return summed


def pick_stages(stages: StageRows, table: StrategyTable, case: IntColumn) -> PickedStages:
    """Stages of one strategy for each distinct (layer case, layout, pipeline, checkpointed layers)."""
    chosen, number = distinct_rows(
        [case, table.layers_per_stage, table.pipeline_parallel_size, table.checkpointed_layers]
    )
    counts = np.diff(stages.start, append=len(stages))[chosen]
    start = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    owner = np.repeat(np.arange(len(chosen)), counts)
    rows = (stages.start[chosen] - start)[owner] + np.arange(len(owner))
    stage = stages.stage[rows]
    following = np.append(stage[1:], 0)
    following[start + counts - 1] = table.pipeline_parallel_size[chosen]
    layers = stages.layers[rows].astype(np.float64)
    held = HeldLayers(
        case=case[chosen][owner],
        layers=layers,
        again=checkpointed_share(table, chosen[owner], layers.sum(axis=1)),
        stage=stage,
        first=stages.first[rows],
        last=stages.last[rows],
    )
    return PickedStages(number, held, owner, start, (following - stage).astype(np.float64))
