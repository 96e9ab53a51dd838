"""Figures as a reader takes them in: three digits, a unit, a dash where there is none."""

from __future__ import annotations

from typing import Any, Final

NONE: Final = "–"


def seconds(value: float | None) -> str:
    """With the unit that leaves one to three digits before the point."""
    if value is None:
        return NONE
    if value == 0:
        return "0 s"
    if abs(value) >= 1:
        return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.3g} s"
    if abs(value) >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def gib(value: float | None) -> str:
    """One decimal, two below ten."""
    if value is None:
        return NONE
    return f"{value:,.1f} GiB" if abs(value) >= 10 or value == 0 else f"{value:.2f} GiB"


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
    return NONE if value is None else f"{value * 100:+.1f} %"


def amount(value: float | None, unit: str = "") -> str:
    """Grouped digits; below a hundred three of them."""
    if value is None:
        return NONE
    written = f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"
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
