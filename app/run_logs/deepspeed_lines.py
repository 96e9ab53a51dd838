"""Lines that DeepSpeed prints beside whatever trains with it.

Sources: microsoft/DeepSpeed `deepspeed/runtime/utils.py` (`see_memory_usage`: rank 0, 2^30 bytes though it says GB,
the reserved peak rounded to whole ones, peaks reset afterwards) and `deepspeed/utils/timer.py` (`ThroughputTimer`:
samples a second of the whole job since its second step, and `max_memory_allocated` over 2^30).
"""

from __future__ import annotations

import re
from typing import Final

from app.run_logs.facts import Facts, Reading
from app.run_logs.patterns import INTEGER, NUMBER

_USAGE: Final = re.compile(
    r"\bMA " + NUMBER + r" GB\s{1,40}Max_MA " + NUMBER + r" GB\s{1,40}CA " + NUMBER + r" GB\s{1,40}Max_CA " + NUMBER
)
_THROUGHPUT: Final = re.compile(
    r"global_step=" + INTEGER + r", RunningAvgSamplesPerSec=" + NUMBER + r"(?:, CurrSamplesPerSec=" + NUMBER + r")?"
    r"(?:, MemAllocated=" + NUMBER + r"GB, MaxMemAllocated=" + NUMBER + r"GB)?"
)
ROUNDING_GIB: Final = 0.51
"""Between a figure with two decimals and one with none."""


def read_memory_usage(line: str, facts: Facts, *, training: bool) -> None:
    """Note a peak of rank 0, if training has begun: the set-up has peaks of its own."""
    found = _USAGE.search(line) if "Max_MA" in line else None
    if not found:
        return
    if not training:
        facts.note("memory that DeepSpeed reports before the first step is the set-up's, and is left out")
        return
    _, allocated, held, peak = map(float, found.groups())
    facts.peak(Reading(rank=0, allocated_gib=allocated or None, reserved_gib=_reserved(allocated, held, peak) or None))


def _reserved(allocated: float, held: float, peak: float) -> float:
    """The peak of what is reserved, finer than it is printed: what is held now where that rounds to the same, as the
    allocator seldom gives back; never less than what is held or allocated."""
    return max(held, allocated) if abs(held - peak) <= ROUNDING_GIB else max(peak, allocated)


def read_throughput(line: str, facts: Facts) -> float | None:
    """Samples a second of the job at this line, if it has them; its memory is noted."""
    found = _THROUGHPUT.search(line) if "RunningAvgSamplesPerSec" in line else None
    if not found:
        return None
    _, average, current, _, peak = found.groups()
    if peak and float(peak) > 0:
        facts.peak(Reading(rank=0, allocated_gib=float(peak)))
    return float(current or average)
