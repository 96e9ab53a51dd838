"""Facts about frameworks as columns of a table."""

from __future__ import annotations

from functools import cache

import numpy as np

from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable, dtype_bytes


def flag(table: StrategyTable, name: str) -> BoolColumn:
    """A yes/no field of `Framework`, (n,)."""
    result: BoolColumn = _flags(name).take(table.framework)
    return result


def number(table: StrategyTable, name: str) -> FloatColumn:
    """A numeric field of `Framework`, (n,)."""
    result: FloatColumn = _numbers(name).take(table.framework)
    return result


def stage_flags(table: StrategyTable, name: str) -> BoolColumn:
    """Where the strategy's ZeRO stage is among a framework's tuple of stages, (n,)."""
    lookup = np.array([[stage in getattr(framework, name) for stage in range(4)] for framework in FRAMEWORKS])
    result: BoolColumn = lookup[table.framework, table.zero_stage]
    return result


@cache
def _flags(name: str) -> BoolColumn:
    return np.array([bool(getattr(framework, name)) for framework in FRAMEWORKS])


@cache
def _numbers(name: str) -> FloatColumn:
    return np.array([float(getattr(framework, name)) for framework in FRAMEWORKS])


def stored_bytes(table: StrategyTable) -> FloatColumn:
    """Bytes of an element that weights are stored in: NF4 weights lie packed in elements of 16 bit."""
    return np.where(table.is_choice("parameter_dtype", "nf4"), 2.0, dtype_bytes(table.parameter_dtype))
