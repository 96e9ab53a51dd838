"""One JSON object of a ClusterInput, read field by field. Null means left out; defaults that were used are listed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cost_models.errors import InvalidInput

Loc = tuple[str | int, ...]

LARGEST_FIGURE: Final = 1e12
"""No bandwidth, size or price in the contract's units comes near it; beyond, products could overflow to infinity."""
LONGEST_NAME: Final = 200


@dataclass
class Section:
    """A checked view of one object at `loc`; `assumptions` is shared by all sections of a cluster."""

    values: Mapping[str, Any]
    loc: Loc
    assumptions: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, raw: object, loc: Loc, known: tuple[str, ...], assumptions: list[str]) -> Section:
        """Accept a JSON object that has no unknown field."""
        if not isinstance(raw, Mapping):
            raise InvalidInput(loc, "not_an_object", f"must be an object, not {shown(raw)}")
        for name in raw:
            if name not in known:
                raise InvalidInput((*loc, str(name)), "unknown_field", f"unknown field; known are {', '.join(known)}")
        return cls({name: value for name, value in raw.items() if value is not None}, loc, assumptions)

    def section(self, name: str, known: tuple[str, ...]) -> Section:
        """A nested object; left out, it is empty."""
        return Section.read(self.values.get(name, {}), (*self.loc, name), known, self.assumptions)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def error(self, name: str, code: str, message: str) -> InvalidInput:
        """An error at a field of this object."""
        return InvalidInput((*self.loc, name), code, message)

    def missing(self, name: str, why: str) -> InvalidInput:
        """A field that nothing can stand in for."""
        return self.error(name, "missing", f"{name} is required: {why}")

    def assume(self, name: str, value: object, why: str) -> None:
        """List a default that is used."""
        path = ".".join(str(part) for part in (*self.loc, name))
        self.assumptions.append(f"{path} left out: {shown(value)}, {why}")

    def number(self, name: str, *, least: float = 0.0, most: float = LARGEST_FIGURE) -> float | None:
        """A finite number of at least `least`; None where left out."""
        raw = self.values.get(name)
        if raw is None:
            return None
        is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
        if not is_number or (isinstance(raw, float) and math.isnan(raw)):
            raise self.error(name, "not_a_number", f"{name} must be a finite number, not {shown(raw)}")
        if raw < least:
            raise self.error(name, "too_small", f"{name} must be at least {least:g}, not {shown(raw)}")
        if raw > most:
            raise self.error(name, "too_large", f"{name} must be at most {most:g}, not {shown(raw)}")
        return float(raw)

    def positive(self, name: str) -> float | None:
        """A finite number above zero; None where left out."""
        value = self.number(name)
        if value == 0:
            raise self.error(name, "too_small", f"{name} must be greater than 0")
        return value

    def integer(self, name: str, *, least: int = 1, most: int) -> int | None:
        """A whole number; None where left out."""
        raw = self.values.get(name)
        if raw is None:
            return None
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise self.error(name, "not_an_integer", f"{name} must be an integer, not {shown(raw)}")
        if raw < least:
            raise self.error(name, "too_small", f"{name} must be at least {least}, not {shown(raw)}")
        if raw > most:
            raise self.error(name, "too_large", f"{name} must be at most {most}, not {shown(raw)}")
        return raw

    def required_integer(self, name: str, *, most: int) -> int:
        """A whole number of at least 1 that must be there."""
        value = self.integer(name, most=most)
        if value is None:
            raise self.missing(name, "nothing stands in for it")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false; None where left out."""
        raw = self.values.get(name)
        if raw is not None and not isinstance(raw, bool):
            raise self.error(name, "not_a_boolean", f"{name} must be true or false, not {shown(raw)}")
        return raw

    def text(self, name: str) -> str | None:
        """A name; None where left out."""
        raw = self.values.get(name)
        if raw is None:
            return None
        if not isinstance(raw, str) or not 0 < len(raw) <= LONGEST_NAME or not raw.isprintable():
            raise self.error(name, "not_a_name", f"{name} must be 1 to {LONGEST_NAME} printable characters")
        return raw

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of a few words; None where left out."""
        raw = self.values.get(name)
        if raw is not None and raw not in choices:
            raise self.error(name, "not_a_choice", f"{name} must be one of {', '.join(choices)}, not {shown(raw)}")
        return raw


def shown(value: object) -> str:
    """A value as the client wrote it, shortened."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > LARGEST_FIGURE**2:
        return "a number beyond all bounds"
    text = f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
