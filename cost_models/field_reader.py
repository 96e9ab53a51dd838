"""Typed reading of a JSON object from outside: each value is checked, each default that was used is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from cost_models.errors import InvalidInput

LARGEST_SIZE: Final = 2**31 - 1
"""No dimension of a model comes near it; larger values are slips and would only overflow later."""
LARGEST_LAYERS: Final = 10_000
"""Layers are held one by one, so that their number has its own bound."""

_Value = TypeVar("_Value")


class FieldReader:
    """Reads one object field by field; `loc` is its place in the request, `origin` whose defaults it has."""

    def __init__(self, fields: Mapping[str, Any], loc: tuple[str | int, ...], origin: str) -> None:
        self.fields = fields
        self.loc = loc
        self.origin = origin
        self.read: set[str] = set()
        self.assumptions: list[str] = []

    def error(self, field: str, code: str, message: str) -> InvalidInput:
        """An error that names the field."""
        return InvalidInput((*self.loc, field), code, message)

    def value(self, field: str, default: Any) -> Any:
        """The raw value, or the default, which is then listed."""
        if field not in self.fields and field not in self.read:
            self.assumptions.append(f"{self._path(field)} left out: {_shown(default)}, the default of {self.origin}")
        self.read.add(field)
        return self.fields.get(field, default)

    def required(self, field: str) -> Any:
        """The raw value of a field that must be there."""
        self.read.add(field)
        if field not in self.fields:
            raise self.error(field, "missing", f"{field} is required")
        return self.fields[field]

    def size(self, field: str, default: int | None, *, largest: int = LARGEST_SIZE) -> int:
        """A positive integer; `default` None: required."""
        raw = self.required(field) if default is None else self.value(field, default)
        return self._integer(field, raw, 1, largest)

    def count(self, field: str, default: int) -> int:
        """An integer that may be zero."""
        return self._integer(field, self.value(field, default), 0, LARGEST_SIZE)

    def optional_size(self, field: str, default: int | None = None) -> int | None:
        """A positive integer or null."""
        raw = self.value(field, default)
        return None if raw is None else self._integer(field, raw, 1, LARGEST_SIZE)

    def flag(self, field: str, default: bool | None) -> bool:
        """True or false; `default` None: required."""
        raw = self.required(field) if default is None else self.value(field, default)
        if not isinstance(raw, bool):
            raise self.error(field, "not_a_boolean", f"{field} must be true or false, not {_shown(raw)}")
        return raw

    def optional_number(self, field: str, default: float | None) -> float | None:
        """A finite number or null."""
        raw = self.value(field, default)
        if raw is None:
            return None
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
            raise self.error(field, "not_a_number", f"{field} must be a finite number or null, not {_shown(raw)}")
        return float(raw)

    def text(self, field: str, default: str) -> str:
        """A string."""
        raw = self.value(field, default)
        if not isinstance(raw, str):
            raise self.error(field, "not_a_string", f"{field} must be a string, not {_shown(raw)}")
        return raw

    def choice(self, field: str, default: _Value, choices: tuple[_Value, ...]) -> _Value:
        """One of a few values."""
        raw = self.value(field, default)
        for known in choices:
            if type(raw) is type(known) and raw == known:
                return known
        raise self.error(field, "not_a_choice", f"{field} must be one of {list(choices)}, not {_shown(raw)}")

    def integers(self, field: str) -> tuple[int, ...] | None:
        """A list of integers that are not negative, or null."""
        raw = self.value(field, None)
        if raw is None:
            return None
        if not isinstance(raw, list | tuple):
            raise self.error(field, "not_a_list", f"{field} must be a list of integers, not {_shown(raw)}")
        return tuple(self._integer(field, item, 0, LARGEST_SIZE) for item in raw)

    def _integer(self, field: str, raw: Any, least: int, largest: int) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise self.error(field, "not_an_integer", f"{field} must be an integer, not {_shown(raw)}")
        if raw < least:
            raise self.error(field, "too_small", f"{field} must be at least {least}, not {raw}")
        if raw > largest:
            raise self.error(field, "too_large", f"{field} must be at most {largest}, not {_shown(raw)}")
        return raw

    def _path(self, field: str) -> str:
        return ".".join(str(part) for part in (*self.loc[1:], field))


def _shown(value: Any) -> str:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
