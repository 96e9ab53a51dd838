"""Columns of strategies as their defaults fill them up, and what was assumed on the way, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cost_models.framework import Framework
from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import CHOICES, MISSING, BoolColumn, Column, IntColumn, PartialColumns, code


class Defaults:
    """The columns as they fill up, and what was assumed on the way."""

    def __init__(self, partial: PartialColumns) -> None:
        self.columns: dict[str, Column] = dict(partial.columns)
        self.layouts: dict[tuple[int, ...], int] = {layout: number for number, layout in enumerate(partial.layouts)}
        self.assumptions: list[str] = []
        self.framework: IntColumn = partial.columns["framework"]

    def __len__(self) -> int:
        return len(self.framework)

    def layout_number(self, layout: tuple[int, ...]) -> int:
        """Where a layout is stored."""
        return self.layouts.setdefault(layout, len(self.layouts))

    def missing(self, name: str) -> BoolColumn | None:
        """Where a value was left out; None: everywhere."""
        column = self.columns.get(name)
        return None if column is None else column == MISSING

    def lookup(self, name: str, value: Callable[[Framework], Any]) -> IntColumn:
        """A property of each row's framework, in the encoding of column `name`."""
        values: IntColumn = np.array([_encode(name, value(framework)) for framework in FRAMEWORKS], dtype=np.int64)
        return values[self.framework]

    def flag(self, value: Callable[[Framework], bool]) -> BoolColumn:
        """A yes or no of each row's framework."""
        return np.array([value(framework) for framework in FRAMEWORKS], dtype=np.bool_)[self.framework]

    def constant(self, name: str, value: Any) -> None:
        """The same value for every row."""
        self.derived(name, np.full(len(self), _encode(name, value)), _words(value))

    def derived(self, name: str, values: Column, words: str, *, only: BoolColumn | None = None) -> None:
        """Values that follow from other columns; said in words where a row of `only` (None: any row) needed them."""
        missing = self.missing(name)
        self.columns[name] = values if missing is None else np.where(missing, values, self.columns[name])
        said = missing if only is None else only if missing is None else missing & only
        self.say(name, words, said)

    def say(self, name: str, words: str, where: BoolColumn | None) -> None:
        """Note what was filled in, where any row (None: all) needed it."""
        if len(self) and (where is None or where.any()):
            self.assumptions.append(f"strategy.{name} left out: {words}")

    def by_framework(self, name: str, value: Callable[[Framework], Any]) -> None:
        """The framework's usual value."""
        self.by_framework_and(name, np.zeros(len(self), dtype=np.int64), (("", value),))

    def by_framework_and(
        self, name: str, case: IntColumn, cases: Sequence[tuple[str, Callable[[Framework], Any]]]
    ) -> None:
        """The framework's usual value in each row's case; cases are given in words and as a property."""
        values = [value(framework) for framework in FRAMEWORKS for _, value in cases]
        key = self.framework * len(cases) + case
        missing = self.missing(name)
        filled = np.array([_encode(name, value) for value in values], dtype=np.int64)[key]
        self.columns[name] = filled if missing is None else np.where(missing, filled, self.columns[name])
        asked = key if missing is None else key[missing]
        groups: dict[str, list[str]] = {}
        for position in np.flatnonzero(np.bincount(asked, minlength=len(values))):
            framework, which = divmod(int(position), len(cases))
            groups.setdefault(_words(values[position]), []).append(FRAMEWORKS[framework].name + cases[which][0])
        for words, where in groups.items():
            self.assumptions.append(f"strategy.{name} left out: {words} ({'; '.join(where)})")

    def fraction(self, name: str) -> None:
        """A share that is the whole where it is left out (NaN)."""
        given = self.columns.get(name)
        if len(self) and (given is None or np.isnan(given).any()):
            self.assumptions.append(f"strategy.{name} left out: 1.0")
        self.columns[name] = np.ones(len(self)) if given is None else np.where(np.isnan(given), 1.0, given)


def _encode(name: str, value: Any) -> int:
    return code(name, value) if name in CHOICES else int(value)


def _words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
