"""Distinct rows of integer columns: what depends on few columns is priced once for each combination and gathered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.strategy import IntColumn

LARGEST_KEY = 2**62
LOOKUP_SIZE = 2**20
"""Keys below this are found by a table, not by sorting (a table of a megabyte stays in cache)."""


def distinct_rows(columns: Sequence[npt.NDArray[np.integer | np.bool_]]) -> tuple[IntColumn, IntColumn]:
    """(index of one row of each distinct combination, number of the combination of each row). Exact, no hashing."""
    rows = len(columns[0])
    key = np.zeros(rows, dtype=np.int64)
    size = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        radix = high - low + 1
        if size * radix >= LARGEST_KEY:
            _, key, size = _number(key, size)
        key = key * radix + (column.astype(np.int64) - low)
        size *= radix
    representatives, number, _ = _number(key, size)
    return representatives, number


def _number(key: IntColumn, size: int) -> tuple[IntColumn, IntColumn, int]:
    if size > LOOKUP_SIZE:
        _, representatives, number = np.unique(key, return_index=True, return_inverse=True)
        return representatives, number, len(representatives)
    where = np.full(size, -1, dtype=np.int64)
    where[key] = np.arange(len(key))
    present = np.flatnonzero(where >= 0)
    representatives = where[present]
    where[present] = np.arange(len(present))
    return representatives, where[key], len(present)
