"""Strategies with their scores, as columns: what the sweep keeps, the study asks for and the ranking sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cost_models.codes import CodeColumn
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, concatenate

Rows = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True)
class Candidates:
    """n strategies, each on one of the cluster sizes. Figures are NaN where a rule is broken; those of time also where
    a sweep did not ask for them. Of memory a sweep with corrections knows exactly what fits, not every figure
    (`judgement.judge_sparingly`)."""

    table: StrategyTable
    cluster: IntColumn
    """(n,) index into `SearchProblem.clusters`."""
    violations: CodeColumn
    """(n,) 0 where valid."""
    step_seconds: FloatColumn
    peak_bytes: FloatColumn
    """(n,) of the fullest stage, as the device shows it."""
    required_upper_bytes: FloatColumn
    """(n,) what must fit, at the confidence asked for."""
    needed_bytes: FloatColumn
    """(n,) of a GPU: the same, or what setting up takes where that is more."""
    fits: BoolColumn
    fits_at_even_odds: BoolColumn
    """(n,) at memory confidence 0.5."""
    in_time: BoolColumn
    """(n,) meets `deadline_days`; True where there is none."""
    objective: FloatColumn
    """(n,) what is minimised: step seconds, dollars or joules of a step."""

    def __len__(self) -> int:
        return len(self.cluster)

    @property
    def valid(self) -> BoolColumn:
        """(n,) breaks no rule."""
        valid: BoolColumn = self.violations == 0
        return valid

    @property
    def acceptable(self) -> BoolColumn:
        """(n,) a plan: valid, fits, and meets the deadline."""
        return self.fits & self.in_time

    @property
    def tight(self) -> BoolColumn:
        """(n,) would fit at even odds only."""
        return ~self.fits & self.fits_at_even_odds & self.in_time

    def take(self, rows: Rows) -> Candidates:
        """The given rows, in the given order."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        columns: Mapping[str, Any] = {name: getattr(self, name)[rows] for name in _SCORES}
        return replace(self, table=self.table.take(rows), **columns)

    def order(self) -> IntColumn:
        """Row numbers, best objective first; ties by memory, then as they stand."""
        order: IntColumn = np.lexsort((self.required_upper_bytes, self.objective))
        return order

    def first_of_each(self, names: Sequence[str]) -> IntColumn:
        """The first row of each distinct combination of cluster and the named integer columns, in order."""
        key = np.stack([self.cluster, *(getattr(self.table, name).astype(np.int64) for name in names)], axis=1)
        _, first = np.unique(key, axis=0, return_index=True)
        return np.sort(first).astype(np.int64)


_SCORES: Final = tuple(f.name for f in fields(Candidates) if f.name != "table")


def join(parts: Sequence[Candidates]) -> Candidates:
    """All rows of all parts, in order."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    columns: Mapping[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _SCORES}
    return Candidates(table=concatenate([part.table for part in parts]), **columns)
