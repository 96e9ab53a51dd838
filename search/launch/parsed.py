"""What a launch file that is read back says, and the reading of its keys: each is understood once, or left over."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cost_models.errors import InvalidInput

PLACE: Final = "content"
"""Where the text lies in a request."""
LARGEST: Final = 2**31 - 1
"""No size of a job comes near it."""
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Parsed:
    """The contract's answer to `strategies/parse`."""

    strategy: Mapping[str, Any]
    """Only what the file says; what it leaves to the framework's default is left out."""
    workload: Mapping[str, Any]
    unmapped: tuple[str, ...]
    """Keys of the file that no field stands for."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The contract's `architecture`, where the file describes one."""


class Keys:
    """A nested file, read by dotted keys. A key that is absent, null or `auto` has no value."""

    def __init__(self, content: Mapping[str, Any], no_value: Collection[Any] = ("auto",)) -> None:
        self._leaves = dict(_leaves(content, ()))
        self._no_value = no_value
        self._understood: set[str] = set()

    def _raw(self, key: str) -> Any:
        value = self._leaves.get(key)
        return None if isinstance(value, str) and value in self._no_value else value

    def need_sections(self, *names: str) -> None:
        """Each of these is an object where it is there at all."""
        for name in names:
            if self._leaves.get(name) is not None:
                raise error(name, "not_an_object", f"must be an object, not {self._leaves[name]!r}")

    def leave(self, key: str) -> None:
        """A key that was read and has a value for which there is no field."""
        self._understood.discard(key)

    def size(self, key: str, smallest: int = 1) -> int | None:
        """A whole number; 1e3 is one too."""

        def check(value: Any) -> int:
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            if not smallest <= number <= LARGEST or number != int(number):
                raise error(key, "not_a_size", f"must be a whole number of at least {smallest}, not {value!r}")
            return int(number)

        return self._read(key, check)

    def share(self, key: str) -> float | None:
        """A number from 0 to 1."""

        def check(value: Any) -> float:
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            if not 0 <= number <= 1:
                raise error(key, "not_a_share", f"must be a number from 0 to 1, not {value!r}")
            return float(number)

        return self._read(key, check)

    def flag(self, key: str) -> bool | None:
        """True or false."""

        def check(value: Any) -> bool:
            if not isinstance(value, bool):
                raise error(key, "not_a_boolean", f"must be true or false, not {value!r}")
            return value

        return self._read(key, check)

    def choice(self, key: str, known: Collection[Any]) -> Any:
        """One of the known values; another one has no field and leaves the key unmapped."""
        value = self._raw(key)
        if value is None or isinstance(value, list | Mapping) or value not in known:
            return None
        self._understood.add(key)
        return value

    def required_choice(self, key: str, known: Collection[Any]) -> Any:
        """One of the known values; the framework itself refuses any other."""

        def check(value: Any) -> Any:
            if isinstance(value, bool | list | Mapping) or value not in known:
                message = f"must be one of {', '.join(map(str, known))}, not {value!r}"
                raise error(key, "unknown_value", message)
            return value

        return self._read(key, check)

    def sizes(self, key: str) -> list[int] | None:
        """A list of whole numbers from 0 on."""

        def check(value: Any) -> list[int]:
            whole = isinstance(value, list) and all(type(item) is int and 0 <= item <= LARGEST for item in value)
            if not whole or not value:
                raise error(key, "not_sizes", f"must be a list of whole numbers, not {value!r}")
            return list(value)

        return self._read(key, check)

    def modules(self, key: str) -> list[list[str]] | None:
        """A list of lists of names."""

        def check(value: Any) -> list[list[str]]:
            parts = value if isinstance(value, list) else [None]
            if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts):
                raise error(key, "not_modules", "must be a list with the names of each part's modules")
            return list(parts)

        return self._read(key, check)

    def ignore(self, *keys: str) -> None:
        """Keys (or, with a final dot, all below one) that change neither memory nor time."""
        for key in keys:
            self._understood.update(name for name in self._leaves if name == key or name.startswith(_prefix(key)))

    def ignore_value(self, key: str, *values: Any) -> None:
        """A key that changes nothing at these values."""
        if key in self._leaves and self._leaves[key] in values:
            self._understood.add(key)

    def _read(self, key: str, check: Callable[[Any], _Value]) -> _Value | None:
        value = self._raw(key)
        if value is None:
            if self._leaves.get(key, "") is None:
                self._understood.add(key)
            return None
        self._understood.add(key)
        return check(value)

    def unmapped(self) -> tuple[str, ...]:
        """Keys that were not understood, in the file's order."""
        return tuple(name for name in self._leaves if name not in self._understood)


def _prefix(key: str) -> str:
    return key if key.endswith(".") else "\0"


def _leaves(content: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        place = (*path, str(key))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, place)
        elif not isinstance(value, Mapping):
            yield ".".join(place), value


def error(key: str, code: str, rule: str) -> InvalidInput:
    """A key of the text that breaks a rule of its framework."""
    return InvalidInput((PLACE, *key.split(".")), code, f"{key} {rule}")


def syntax_error(kind: str, line: int | None, message: str) -> InvalidInput:
    """Text that is not of its kind."""
    place = "" if line is None else f" in line {line}"
    return InvalidInput((PLACE,), "syntax", f"this is no {kind}{place}: {message}")


def present(**values: Any) -> dict[str, Any]:
    """The values that are there."""
    return {name: value for name, value in values.items() if value is not None}
