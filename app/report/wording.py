"""Figures as a reader takes them in: three digits, a unit, a dash where there is none."""

from __future__ import annotations

from typing import Any, Final

NONE: Final = "–"
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def _three_digits(value: float) -> str:
    """Or more before the point."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """With the unit that leaves one to three digits before the point."""
    if value is None:
        return NONE
    if value == 0:
        return "0 s"
    scale, unit = next((pair for pair in _SECONDS if abs(value) >= pair[0]), _SECONDS[-1])
    return f"{_three_digits(value / scale)} {unit}"


def gib(value: float | None) -> str:
    """One decimal, two below ten."""
    if value is None:
        return NONE
    return f"{bare_gib(value)} GiB"


def bare_gib(value: float) -> str:
    """Where a heading says the unit."""
    return "0" if value == 0 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float | None) -> str:
    """Percent; of a small one a digit behind the point."""
    if value is None:
        return NONE
    percent = value * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 10 or percent == 0 else f"{percent:.1f} %"


def change(value: float | None) -> str:
    """Percent with its sign."""
    if value is None:
        return NONE
    percent = round(value * 100, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def amount(value: float | None, unit: str = "") -> str:
    """Grouped digits; below a hundred three of them."""
    if value is None:
        return NONE
    written = f"{value:,.0f}" if float(value).is_integer() else _three_digits(value)
    return f"{written} {unit}".rstrip()


def yes_no(value: bool | None) -> str:
    """In words."""
    return NONE if value is None else "yes" if value else "no"


def words(name: str) -> str:
    """A field's name, as words."""
    return name.replace("_", " ")


def plain(value: Any) -> str:
    """A field's value as it would be typed."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or NONE
    return str(value)
