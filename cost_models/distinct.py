"""Distinct rows of columns: what depends on few columns is priced once for each combination and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cost_models.strategy import Column, IntColumn

LOOKUP_SIZE: Final = 2**19
"""Keys below this are numbered through a table, which stays in cache; larger ones by sorting."""
LARGEST_KEY: Final = 2**62


def distinct_rows(columns: Sequence[Column]) -> tuple[IntColumn, IntColumn]:
    """(index of one row of each distinct combination, number of the combination of each row). Exact, no hashing."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        low, high = column.min(), column.max()
        if low == high:
            continue
        values = np.unique(column, return_inverse=True)[1] if column.dtype.kind == "f" else column
        low, high = int(values.min()), int(values.max())
        radix = high - low + 1
        if size * radix > LOOKUP_SIZE:
            _, key, size = _number(key, size)
        if size * radix > LARGEST_KEY:
            _, values, radix = _number(values.astype(np.int64) - low, radix)
            low = 0
        key *= radix
        key += values
        key -= low
        size *= radix
    representatives, number, _ = _number(key, size)
    return representatives, number


def _number(key: IntColumn, size: int) -> tuple[IntColumn, IntColumn, int]:
    """Keys in [0, size) renumbered without gaps, in their order."""
    if size > LOOKUP_SIZE:
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        return first, number, len(first)
    where = np.full(size, -1, dtype=np.int64)
    where[key[::-1]] = np.arange(len(key))[::-1]  # the first row of each key is written last
    present = np.flatnonzero(where >= 0)
    first = where[present]
    where[present] = np.arange(len(present))
    return first, where[key], len(present)
