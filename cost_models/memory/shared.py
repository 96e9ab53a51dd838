"""Parts of the estimate that depend on a few columns only: worked out once for each distinct set of their values.

A sweep varies micro-batch and recomputation over the same layouts, and sharding over the same activations: what lasts
through a step and what passes within it are each priced on far fewer strategies than there are, then gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.stages import StageRows
from cost_models.strategy import Column, FloatColumn, IntColumn, StrategyTable


@dataclass(frozen=True)
class Shared:
    """u distinct strategies with v stage rows, out of n strategies with m stage rows."""

    table: StrategyTable
    stages: StageRows
    which: IntColumn
    """(n,) the distinct strategy of each strategy."""
    rows: IntColumn
    """(m,) the distinct strategy's stage row of each stage row."""

    def on_strategies(self, column: FloatColumn) -> FloatColumn:
        """(u,) to (n,)."""
        result: FloatColumn = column[self.which]
        return result


def share(table: StrategyTable, stages: StageRows, names: tuple[str, ...], *others: Column) -> Shared:
    """Strategies that differ in the named columns or in `others`; a layout and a pipeline size must be among them, so
    that equal strategies have equal stages."""
    first, which = distinct_rows([*(getattr(table, name) for name in names), *others])
    counts = np.diff(stages.start, append=len(stages))[first]
    start = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    row = np.repeat(np.arange(len(first)), counts)
    taken = np.arange(len(row)) + (stages.start[first] - start)[row]
    rows = np.arange(len(stages)) + (start[which] - stages.start)[stages.row]
    distinct_stages = StageRows(
        row=row,
        stage=stages.stage[taken],
        start=start,
        layers=stages.layers[taken],
        first=stages.first[taken],
        last=stages.last[taken],
    )
    return Shared(table.take(first), distinct_stages, which, rows)
