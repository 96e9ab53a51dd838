"""The free blocks inside the memory that an allocator holds, at one moment: what fragmentation leaves to a request."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.memory_snapshots.snapshot import SMALL_SEGMENT_BYTES, Device
from app.memory_snapshots.timeline import Moment

LARGE_REQUEST_BYTES: Final = 2**20
"""Requests above this are served from segments of the large pool only (kSmallSize in c10/cuda/CUDACachingAllocator)."""


class Held(NamedTuple):
    """A contiguous piece of held memory; blocks do not cross its ends."""

    begin: int
    end: int
    stream: int
    large: bool


@dataclass(frozen=True)
class FreeBlocks:
    """The gaps that a request could be put into: those of its stream, and of its pool by size."""

    total_bytes: int
    count: int
    largest_bytes: int


def free_blocks(device: Device, moment: Moment, *, large: bool, stream: int | None) -> FreeBlocks:
    """Gaps at a moment; `stream` None: of all streams."""
    used = {address: block.size for address, block in moment.live.items()} | moment.pending
    addresses = sorted(used)
    gaps: list[int] = []
    for held in held_memory(device, moment.event):
        if held.large != large or (stream is not None and held.stream != stream):
            continue
        position = held.begin
        for address in addresses[bisect_left(addresses, held.begin) : bisect_left(addresses, held.end)]:
            if address > position:
                gaps.append(address - position)
            position = max(position, address + used[address])
        if held.end > position:
            gaps.append(held.end - position)
    return FreeBlocks(sum(gaps), len(gaps), max(gaps, default=0))


def held_memory(device: Device, event: int) -> list[Held]:
    """What the allocator holds after an event: the segments at the end, with all later changes undone."""
    plain = {
        segment.address: Held(segment.address, segment.address + segment.size, segment.stream, segment.large)
        for segment in device.segments
        if not segment.expandable
    }
    # Expandable segments grow and shrink at page bounds, so that pieces are added up: +1 held, -1 not.
    pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for segment in device.segments:
        if segment.expandable:
            pieces[segment.stream] += [(segment.address, 1), (segment.address + segment.size, -1)]
    for entry in reversed(device.events[event + 1 :]):
        begin, end = entry.address, entry.address + entry.size
        if entry.action == "segment_alloc":
            plain.pop(begin, None)
        elif entry.action == "segment_free":
            plain[begin] = Held(begin, end, entry.stream, entry.size > SMALL_SEGMENT_BYTES)
        elif entry.action in ("segment_map", "segment_unmap"):
            sign = 1 if entry.action == "segment_unmap" else -1
            pieces[entry.stream] += [(begin, sign), (end, -sign)]
    small = [segment for segment in device.segments if segment.expandable and not segment.large]
    expandable = [
        Held(begin, end, stream, not any(part.address < end and begin < part.address + part.size for part in small))
        for stream, changes in pieces.items()
        for begin, end in _covered(changes)
    ]
    return [*plain.values(), *expandable]


def _covered(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    by_address: dict[int, int] = defaultdict(int)
    for address, change in changes:
        by_address[address] += change
    covered: list[tuple[int, int]] = []
    depth, begin = 0, 0
    for address in sorted(by_address):
        before, depth = depth, depth + by_address[address]
        if before <= 0 < depth:
            begin = address
        elif depth <= 0 < before:
            covered.append((begin, address))
    return covered
