"""Non-dominated candidates: no other is at least as good in both figures and better in one."""

from __future__ import annotations

import numpy as np

from cost_models.strategy import BoolColumn, FloatColumn


def front(first: FloatColumn, second: FloatColumn) -> BoolColumn:
    """Mask (n,) of the points that no other dominates (both minimised); of equal points the first stands.

    Sorted by the first figure, a point is on the front where the second falls below all before it (Kung, Luccio and
    Preparata, Journal of the ACM 22(4), 1975).
    """
    order = np.lexsort((np.arange(len(first)), second, first))
    sorted_second = second[order]
    lowest_before = np.concatenate([[np.inf], np.minimum.accumulate(sorted_second)[:-1]])
    mask = np.zeros(len(first), dtype=np.bool_)
    mask[order[sorted_second < lowest_before]] = True
    return mask
