"""A run that ran out of memory, and the figures that PyTorch prints then.

Wordings, from `c10/cuda/CUDACachingAllocator.cpp` of pytorch/pytorch. Until 2.0: "CUDA out of memory. Tried to
allocate 512.00 MiB (GPU 5; 39.39 GiB total capacity; 35.88 GiB already allocated; 370.81 MiB free; 36.81 GiB reserved
in total by PyTorch)". Since 2.1: "... GPU 0 has a total capacity of 79.10 GiB of which 1.31 MiB is free. Including
non-PyTorch memory, this process has 79.09 GiB memory in use. Of the allocated memory 76.01 GiB is allocated by
PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated." HIP writes HIP for CUDA.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from app.run_logs.facts import Facts, Reading
from app.run_logs.patterns import NUMBER

_HAPPENED: Final = re.compile(r"\b(?:CUDA|HIP|NPU|XPU) out of memory\b|\bOutOfMemoryError\b")
_RANK: Final = re.compile(r"\[rank ?(\d{1,7})\]", re.IGNORECASE)
_SIZE: Final = NUMBER + r" (bytes|KiB|MiB|GiB|TiB)"
_ALLOCATED: Final = re.compile(_SIZE + r" (?:already allocated|is allocated by PyTorch)")
_RESERVED: Final = re.compile(_SIZE + r" reserved in total")
_UNUSED: Final = re.compile(_SIZE + r" is reserved by PyTorch but unallocated")
_IN_USE: Final = re.compile(r"this process has " + _SIZE + r" memory in use")
_GIB: Final = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}


def read_out_of_memory(line: str, facts: Facts) -> None:
    """Note that the run ran out of memory, and what it held then: lower bounds of what it needs."""
    if "emory" not in line or not _HAPPENED.search(line):
        return
    facts.out_of_memory = True
    allocated, reserved, unused = _gib(_ALLOCATED, line), _gib(_RESERVED, line), _gib(_UNUSED, line)
    if reserved is None and allocated is not None and unused is not None:
        reserved = allocated + unused
    tag = _RANK.search(line)
    held = Reading(
        rank=int(tag.group(1)) if tag else None,
        allocated_gib=allocated,
        reserved_gib=reserved,
        device_gib=_gib(_IN_USE, line),
    )
    if held != replace(held, allocated_gib=None, reserved_gib=None, device_gib=None):
        facts.peak(held)
        facts.note("out of memory: the peaks are what was held when an allocation failed, lower bounds")


def _gib(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    return float(found.group(1)) * _GIB[found.group(2)] if found else None
