"""Regular expressions that several readers share."""

from __future__ import annotations

import re
from typing import Final

NUMBER: Final = r"(\d{1,15}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?)(?=[^\d.eE])"
"""A figure with something behind it: at the end of a log that was cut off, digits may be missing."""
INTEGER: Final = r"(\d{1,12})(?=[^\d.])"

CLOCK: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)[,.](\d{3,6})")
"""A time stamp with a fraction, as Python's logging writes it."""


def whole(text: str) -> int:
    """An integer written with or without thousands separators."""
    return int(text.replace(",", ""))
