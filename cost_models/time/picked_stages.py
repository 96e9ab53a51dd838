"""Stage rows of some strategies, and how many stages each stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, IntColumn


@dataclass(frozen=True)
class PickedStages:
    """Rows of p picked strategies, in their order."""

    rows: IntColumn
    """Index into the stage rows."""
    owner: IntColumn
    """Which of the p strategies."""
    start: IntColumn
    """(p,) where each strategy's rows begin."""
    weight: FloatColumn
    """Stages that a row stands for: the second also for the middle ones where only bounding stages were made."""


def pick_stages(stages: StageRows, pipeline: IntColumn, strategies: IntColumn) -> PickedStages:
    """Rows of `strategies`, whose pipelines are `pipeline` long."""
    counts = np.diff(np.append(stages.start, len(stages)))[strategies]
    start = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    owner = np.repeat(np.arange(len(strategies)), counts)
    rows = stages.start[strategies][owner] + np.arange(len(owner)) - start[owner]
    left_out = (pipeline - counts)[owner]
    weight = np.where(stages.stage[rows] == 1, 1.0 + left_out, 1.0)
    return PickedStages(rows, owner, start, weight)
