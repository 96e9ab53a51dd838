"""One-sided bounds from what predictions of unseen runs missed by: weighted conformal quantiles, tabulated.

e = log(measured / corrected) of calibration rows. Rows of one group are alike: a group is drawn first, then a row of it
(arXiv 1809.07441), and one that was run a thousand times weighs hardly more than one that was run a hundred times. The
level of a row is the weight up to it over the total weight and that of one row more, the one to be predicted (arXiv
1904.06019, weighted conformal prediction).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from cost_models.strategy import FloatColumn, IntColumn

LEVELS: Final = np.array(
    [0.0, 0.001, 0.005, 0.01, 0.02, *np.arange(0.05, 0.951, 0.025), 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0]
)
"""Of the tables, strictly rising."""
OUTERMOST: Final = 1e-4
"""Where a table ends: levels 0 and 1 stand for this probability on each side."""
_NORMAL: Final = NormalDist()
_NORMAL_TABLE: Final = np.array([_NORMAL.inv_cdf(min(max(p, OUTERMOST), 1.0 - OUTERMOST)) for p in LEVELS.tolist()])
_TAIL: Final = 0.1
"""Share of the rows on each side whose mean distance from the inner ones is the scale of the tail beyond all rows."""
_LEAST_STEP: Final = 1e-6
"""Between neighbouring levels, so that bound and probability are inverse to one another."""
LEAST_SCALE: Final = 0.01
"""Of a tail: the allocator's blocks alone move a peak by a per cent."""


def group_weights(group: IntColumn, rows_to_count: float = 0.0) -> FloatColumn:
    """(n,) weights that add up to one: within a group every row the same, groups n / (n + rows_to_count)."""
    _, which, count = np.unique(group, return_inverse=True, return_counts=True)
    of_group = count / (count + rows_to_count)
    weights: FloatColumn = (of_group / of_group.sum() / count)[which]
    return weights


def quantile_table(errors: FloatColumn, weights: FloatColumn) -> FloatColumn:
    """(k,) quantiles of e at LEVELS, strictly rising: linear between rows, exponential tails beyond them."""
    order = np.argsort(errors, kind="stable")
    ordered, weight = errors[order], weights[order] / weights.sum()
    rows = 1.0 / np.square(weight).sum()
    above = (np.cumsum(weight) * rows) / (rows + 1.0)
    below = 1.0 - (np.cumsum(weight[::-1])[::-1] * rows) / (rows + 1.0)
    middle = (above + below) / 2.0
    levels = np.clip(LEVELS, OUTERMOST, 1.0 - OUTERMOST)
    table = np.interp(levels, middle, ordered)
    high, low = levels > above[-1], levels < below[0]
    table[levels >= middle[-1]] = ordered[-1]
    table[high] += _tail_scale(ordered, weight) * np.log((1.0 - above[-1]) / (1.0 - levels[high]))
    table[low] -= _tail_scale(-ordered[::-1], weight[::-1]) * np.log(below[0] / levels[low])
    return strictly_rising(table)


def normal_table(deviation: float) -> FloatColumn:
    """(k,) quantiles at LEVELS of a normal error around zero."""
    return strictly_rising(_NORMAL_TABLE * deviation)


def strictly_rising(table: FloatColumn) -> FloatColumn:
    """The table, each entry at least a little above the one before."""
    steps = np.arange(len(table)) * _LEAST_STEP
    rising: FloatColumn = np.maximum.accumulate(table - steps) + steps
    return rising


def _tail_scale(ordered: FloatColumn, weight: FloatColumn) -> float:
    """Mean excess of the highest rows over the level where they begin."""
    reached = np.cumsum(weight)
    begin = min(int(np.searchsorted(reached, 1.0 - _TAIL)), len(ordered) - 1)
    above = slice(begin, None)
    excess = float(np.average(ordered[above] - ordered[begin], weights=weight[above]))
    return max(excess, LEAST_SCALE)
