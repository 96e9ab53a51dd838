"""Groups of rows: evenly drawn from, and left out whole."""

from __future__ import annotations

import numpy as np

from cost_models.strategy import IntColumn


def evenly(group: IntColumn, most: int) -> IntColumn:
    """Rows, at most so many of each group, spread evenly over its own."""
    chosen = []
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        spread = np.unique(np.linspace(0, len(members) - 1, min(most, len(members))).astype(np.int64))
        chosen.append(members[spread])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def folds(group: IntColumn, most: int) -> IntColumn:
    """(m,) fold of each row: whole groups, the largest in folds of their own while there are enough."""
    names, which, count = np.unique(group, return_inverse=True, return_counts=True)
    place = np.empty(len(names), dtype=np.int64)
    place[np.argsort(-count, kind="stable")] = np.arange(len(names))
    fold: IntColumn = (place % most)[which]
    return fold
