"""Distinct combinations of a few columns: what depends on them alone is worked out once and gathered."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.strategy import Column, IntColumn

_LARGEST_KEY: Final = 2**62


def distinct(*columns: Column) -> tuple[IntColumn, IntColumn]:
    """(u,) a row of each distinct combination, and (n,) which of them each row has. Values are numbers >= 0."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for column in columns:
        if column.dtype.kind == "f":
            column = np.unique(column, return_inverse=True)[1]
        size = int(column.max(initial=0)) + 1
        if span * size > _LARGEST_KEY:
            known, key = np.unique(key, return_inverse=True)
            span = len(known)
        if span * size > _LARGEST_KEY:
            values, column = np.unique(column, return_inverse=True)
            size = len(values)
        key = key * size + column
        span *= size
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which
