"""Measured figures as rows to learn from: columns of shape (m,), one row a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from cost_models.learned.features import FEATURES
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

_Rows = TypeVar("_Rows", "MemoryRows", "TimeRows")


@dataclass(frozen=True)
class Origin:
    """Where rows come from; columns of shape (m,), indices into the names of `TrainingRuns`."""

    request: IntColumn
    """Number of the distinct request."""
    framework: IntColumn
    cluster: IntColumn
    family: IntColumn
    """Sources that share machines or runs: never split between fit and score."""
    shape: IntColumn
    """Model."""
    logged: BoolColumn
    """Logged to this service, rather than published by others: only these are runs of one's own."""
    at_seconds: FloatColumn
    """When it ran, since 1970; NaN where unknown."""

    def __len__(self) -> int:
        return len(self.framework)

    def take(self, rows: BoolColumn | IntColumn) -> Origin:
        """The given rows."""
        return Origin(**{field.name: getattr(self, field.name)[rows] for field in fields(Origin)})


@dataclass(frozen=True)
class MemoryRows:
    """m measured peaks."""

    origin: Origin
    features: FloatColumn
    """(m, f) by FEATURES."""
    statistic: IntColumn
    """(m,) index into STATISTICS."""
    log_ratio: FloatColumn
    """(m,) log(measured / analytical)."""
    censored: BoolColumn
    """(m,) ran out of memory: `log_ratio` is a lower bound, of what allocated must have been to overflow the device."""

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, rows: BoolColumn | IntColumn) -> MemoryRows:
        """The given rows."""
        return _taken(self, rows)

    @staticmethod
    def joined(parts: Sequence[MemoryRows]) -> MemoryRows:
        """All rows of all parts, in order."""
        return _joined(parts, _no_memory_rows())


@dataclass(frozen=True)
class TimeRows:
    """t measured step times."""

    origin: Origin
    log_ratio: FloatColumn
    """(t,) log(measured / predicted)."""

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, rows: BoolColumn | IntColumn) -> TimeRows:
        """The given rows."""
        return _taken(self, rows)

    @staticmethod
    def joined(parts: Sequence[TimeRows]) -> TimeRows:
        """All rows of all parts, in order."""
        return _joined(parts, TimeRows(_no_origin(), np.empty(0)))


def _no_origin() -> Origin:
    none = np.empty(0, dtype=np.int64)
    return Origin(none, none, none, none, none, np.empty(0, dtype=np.bool_), np.empty(0))


def _no_memory_rows() -> MemoryRows:
    none = np.empty(0, dtype=np.int64)
    return MemoryRows(_no_origin(), np.empty((0, len(FEATURES))), none, np.empty(0), np.empty(0, dtype=np.bool_))


def _joined(parts: Sequence[_Rows], nothing: _Rows) -> _Rows:
    if not parts:
        return nothing
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(nothing)
        if field.name != "origin"
    }
    origin = Origin(
        **{field.name: np.concatenate([getattr(part.origin, field.name) for part in parts]) for field in fields(Origin)}
    )
    return type(nothing)(origin=origin, **columns)


def _taken(rows_of: _Rows, rows: BoolColumn | IntColumn) -> _Rows:
    columns = {field.name: getattr(rows_of, field.name) for field in fields(rows_of)}
    return type(rows_of)(
        **{name: column.take(rows) if name == "origin" else column[rows] for name, column in columns.items()}
    )
