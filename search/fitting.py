"""The least recomputation and offload with which strategies fit: solved, not searched.

Checkpointing one layer more or offloading a larger share makes no step faster, so the best `checkpointed_layers` and
`offload_fraction` of a strategy lie on the edge of what fits. Memory is asked about the whole grid of the two, time
about its edge alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import OFFLOADS, BoolColumn, FloatColumn, IntColumn, StrategyTable
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.startable import startable

FRACTIONS: Final = tuple(step / 20 for step in range(1, 21))
"""offload_fraction in steps of 5 %: finer than anyone can trust a bandwidth figure."""


def fit_finely(
    evaluator: Evaluator, cluster: int, table: StrategyTable, peak_limit_bytes: FloatColumn | None = None
) -> Candidates:
    """Each of n strategies with the best count of checkpointed layers and share of offload that fits.

    `checkpointed_layers` of the table is the most there may be. Where no count and share fit, it is the leanest. What
    `space` names is kept to. `peak_limit_bytes`, (n,): what the peak shall stay below besides.
    """
    grid = _grid(evaluator.search.space, table)
    judged = evaluator.judge(cluster, grid.strategies(table, np.arange(len(grid))))
    fits = judged.fits & startable(evaluator.search, cluster, judged.table)
    if peak_limit_bytes is not None:
        fits = fits & (judged.peak_bytes <= peak_limit_bytes[grid.row])
    edge = grid.edge(fits)
    scored = evaluator.evaluate(cluster, grid.strategies(table, edge))
    return scored.take(_best_of_each(grid.row[edge], scored))


def least(table: StrategyTable) -> StrategyTable:
    """The strategies with as little recomputed and offloaded as there can be: no setting of the two is faster.

    What a framework does in whole stays whole.
    """
    in_part = table.is_choice("activation_checkpointing", "full") & _checkpoints_in_part(table)
    return replace(
        table,
        checkpointed_layers=np.where(in_part, 1, table.checkpointed_layers),
        offload_fraction=np.where(_offloads_in_part(table), FRACTIONS[0], table.offload_fraction),
    )


@dataclass(frozen=True)
class _Grid:
    """g points: counts ascending within shares ascending within rows of the table."""

    row: IntColumn
    layers: IntColumn
    fraction: FloatColumn
    group: IntColumn
    """(g,) which row and share, ascending."""

    @classmethod
    def empty(cls) -> _Grid:
        """No point."""
        whole: IntColumn = np.zeros(0, dtype=np.int64)
        return cls(row=whole, layers=whole, fraction=np.zeros(0), group=whole)

    def __len__(self) -> int:
        return len(self.row)

    def strategies(self, table: StrategyTable, points: IntColumn) -> StrategyTable:
        """Points as strategies."""
        return replace(
            table.take(self.row[points]),
            checkpointed_layers=self.layers[points],
            offload_fraction=self.fraction[points],
        )

    def edge(self, fits: BoolColumn) -> IntColumn:
        """The first point of each group that fits; of rows that fit nowhere the leanest, their last."""
        fitting = np.flatnonzero(fits)
        _, first = np.unique(self.group[fitting], return_index=True)
        edge = fitting[first]
        last = np.flatnonzero(np.diff(self.row, append=-1))
        hopeless = last[~np.isin(self.row[last], self.row[edge])]
        return np.sort(np.concatenate([edge, hopeless]))


def _grid(space: Mapping[str, Sequence[Any]], table: StrategyTable) -> _Grid:
    counted = ("full", "selective") if "checkpointed_layers" in space else ("full",)
    takes_counts = table.is_choice("activation_checkpointing", *counted) & _checkpoints_in_part(table)
    takes_shares = _offloads_in_part(table)
    named_counts = np.array(sorted(set(space.get("checkpointed_layers", ()))), dtype=np.int64)
    shares = np.array(sorted(set(space.get("offload_fraction", FRACTIONS))), dtype=np.float64)
    parts, groups = [_Grid.empty()], 0
    for row, most in enumerate(table.checkpointed_layers.tolist()):
        every = named_counts if len(named_counts) else np.arange(1, max(most, 1) + 1)
        layers = every if takes_counts[row] else np.array([most])
        fractions = shares if takes_shares[row] else table.offload_fraction[row : row + 1]
        parts.append(
            _Grid(
                row=np.full(len(layers) * len(fractions), row),
                layers=np.tile(layers, len(fractions)),
                fraction=np.repeat(fractions, len(layers)),
                group=np.repeat(np.arange(groups, groups + len(fractions)), len(layers)),
            )
        )
        groups += len(fractions)
    return _Grid(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def _checkpoints_in_part(table: StrategyTable) -> BoolColumn:
    in_part: BoolColumn = np.array([framework.checkpoints_in_part for framework in FRAMEWORKS])[table.framework]
    return in_part


def _offloads_in_part(table: StrategyTable) -> BoolColumn:
    able = np.array(
        [
            [[framework.offloads_in_part(kind, stage) for stage in range(4)] for kind in OFFLOADS]
            for framework in FRAMEWORKS
        ]
    )
    in_part: BoolColumn = able[table.framework, table.offload, table.zero_stage]
    return in_part


def _best_of_each(rows: IntColumn, scored: Candidates) -> IntColumn:
    """The best scored point of each row, in order of the rows."""
    order = np.lexsort((scored.objective, ~scored.acceptable, rows))
    _, first = np.unique(rows[order], return_index=True)
    best: IntColumn = order[first]
    return best
