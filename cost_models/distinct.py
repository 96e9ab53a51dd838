"""Distinct rows of columns: what depends on few columns is priced once for each combination and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cost_models.strategy import Column, IntColumn

LOOKUP_ROWS: Final = 32
"""Keys below this many times the rows are numbered through a table of all possible ones; larger ones by sorting."""
WIDE_COLUMN: Final = 32
"""Values from the lowest to the highest of a column above which it is numbered by itself first: most are powers of two
and few, and without the gaps between them the key stays small enough for the table."""
LARGEST_KEY: Final = 2**62


def distinct_rows(columns: Sequence[Column]) -> tuple[IntColumn, IntColumn]:
    """(index of one row of each distinct combination, number of the combination of each row). Exact, no hashing."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    if not len(key):
        return key, key
    size, lookup = 1, LOOKUP_ROWS * len(key)
    for column in columns:
        low, high = column.min(), column.max()
        if low == high:
            continue
        values, low, radix = _integers(column, low, high)
        if WIDE_COLUMN < radix <= lookup:
            values, radix = _number(values - low, radix)
            low = 0
        if size <= lookup < size * radix or size * radix > LARGEST_KEY:
            key, size = _number(key, size)
        if size * radix > LARGEST_KEY:
            values, radix = _number(values.astype(np.int64) - low, radix)
            low = 0
        key *= radix
        key += values
        if low:
            key -= low
        size *= radix
    number, count = _number(key, size)
    representatives = np.empty(count, dtype=np.int64)
    representatives[number] = np.arange(len(key))
    return representatives, number


def _integers(column: Column, low: float, high: float) -> tuple[Column, int, int]:
    """(values, the lowest, how many from there to the highest); other than integers by their order."""
    if column.dtype.kind == "f":
        values, codes = np.unique(column, return_inverse=True)
        return codes, 0, len(values)
    return column, int(low), int(high) - int(low) + 1


def _number(key: IntColumn, size: int) -> tuple[IntColumn, int]:
    """(keys in [0, size) renumbered without gaps, in their order; how many there are)."""
    if size > LOOKUP_ROWS * len(key):
        values, number = np.unique(key, return_inverse=True)
        return number, len(values)
    taken = np.zeros(size, dtype=np.bool_)
    taken[key] = True
    present = np.flatnonzero(taken)
    numbers = np.empty(size, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    return numbers[key], len(present)
