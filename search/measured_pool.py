"""The strategies that a measured search may give out, with what the analytical search says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from cost_models.results import TIME_PARTS
from cost_models.strategy import FloatColumn

Layout = Mapping[str, Any]


@dataclass(frozen=True)
class MeasuredPool:
    """n candidates, as plain values that go to JSON and back; the analytical plans first, best first."""

    strategies: tuple[Layout, ...]
    """Resolved, in the words of the contract."""
    nodes: tuple[int, ...]
    price: tuple[float, ...]
    """Of a second: what the objective makes of it (`Evaluator.price`)."""
    parts_seconds: tuple[tuple[float, ...], ...]
    """(n, TIME_PARTS)."""
    required_gib: tuple[float, ...]
    required_deviation: tuple[float, ...]
    """Of log(required / `required_gib`)."""
    peaks_gib: tuple[tuple[float, float, float], ...]
    """(n, STATISTICS) of the fullest stage."""
    capacity_gib: float
    memory_confidence: float
    """That a candidate should fit with, by what is believed when it is given out."""

    def __len__(self) -> int:
        return len(self.strategies)

    @cached_property
    def parts(self) -> FloatColumn:
        """(n, TIME_PARTS) seconds."""
        return np.array(self.parts_seconds, dtype=np.float64).reshape(len(self), len(TIME_PARTS))

    @cached_property
    def step_seconds(self) -> FloatColumn:
        """(n,) as estimated."""
        seconds: FloatColumn = self.parts.sum(axis=1)
        return seconds

    def as_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MeasuredPool:
        """The pool that `as_dict` wrote."""
        columns: dict[str, Any] = {name: values[name] for name in _FIELDS}
        for name, column in columns.items():
            columns[name] = tuple(column) if isinstance(column, list) else column
        return cls(**columns)


_FIELDS: Final = tuple(MeasuredPool.__dataclass_fields__)
