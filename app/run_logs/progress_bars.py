"""Progress bars of tqdm: steps and elapsed time, where a log has no other clock.

Source: tqdm/tqdm `tqdm/std.py`, `format_meter`: "n/total [elapsed<remaining, rate]", whole seconds. The rate that it
prints is smoothed with a memory of a few steps; differences of the elapsed time are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BAR: Final = re.compile(r"\| {0,12}(\d{1,9})/(\d{1,9}) \[((?:\d{1,4}:)?\d{1,2}:\d\d)<")
FEWEST_SECONDS: Final = 20
"""Of an interval: whole seconds at both ends are then right to 5 %."""

Mark = tuple[int, int, int]
"""Step, all steps, elapsed seconds."""


def bar_mark(line: str) -> Mark | None:
    """The position of a progress bar that this line shows."""
    found = _BAR.search(line) if "[" in line else None
    if not found:
        return None
    seconds = 0
    for part in found.group(3).split(":"):
        seconds = 60 * seconds + int(part)
    return int(found.group(1)), int(found.group(2)), seconds


def bar_intervals(marks: Iterable[Mark]) -> list[float]:
    """Intervals of at least `FEWEST_SECONDS` between marks of one bar; another bar (evaluation) has other totals."""
    intervals: list[float] = []
    begin: Mark | None = None
    for mark in marks:
        if begin is None or mark[1] != begin[1] or mark[0] < begin[0]:
            begin = mark
        elif mark[0] > begin[0] and mark[2] - begin[2] >= FEWEST_SECONDS:
            steps = mark[0] - begin[0]
            intervals.append((mark[2] - begin[2]) / steps)
            begin = mark
    return intervals
