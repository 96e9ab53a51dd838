"""A device's memory over its trace, replayed backwards from the state at the end and then forwards.

The trace is a ring: its oldest entries may be gone, so that what was live at its beginning is only known from what is
live at its end and from what was freed in between. `allocated` counts as torch.cuda.max_memory_allocated does: from
the allocation to the request to free it; until the free is completed the block stays occupied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from app.memory_snapshots.snapshot import Device, Event, Frames

BLOCK_BYTES: Final = 512
"""Sizes are rounded up to this (kMinBlockSize in c10/cuda/CUDACachingAllocator). Events hold sizes before rounding: of
blocks that are not live at the end, what rounding to larger sizes and unsplit remainders add is not known."""
BEFORE_TRACE: Final = -1
"""The moment before the first event."""
_MAPPED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Live(NamedTuple):
    """A block that is in use."""

    size: int
    frames: Frames | None
    """Where it was allocated; None: not recorded."""


@dataclass(frozen=True)
class Moment:
    """What is in use after one event."""

    event: int
    """Index into the device's events; BEFORE_TRACE."""
    live: dict[int, Live]
    """By address."""
    pending: dict[int, int]
    """Sizes by address: freed, but another stream still uses them."""
    reserved_bytes: int

    @property
    def allocated_bytes(self) -> int:
        """Of all live blocks."""
        return sum(block.size for block in self.live.values())


@dataclass(frozen=True)
class Timeline:
    """The replay of one device."""

    start: Moment
    sizes: list[int]
    """(events,) bytes that an event allocates or frees; 0 where it does neither, or lacks its counterpart."""
    unmatched_events: int
    """Allocations and frees whose counterpart is missing (`skip_actions`, or memory pools left out)."""
    peak_allocated_bytes: int
    peak_allocated_event: int
    peak_reserved_bytes: int
    allocated_at_end_bytes: int

    @property
    def complete(self) -> bool:
        """Whether the trace begins before the first allocation, so that the peaks are those of the process."""
        return not self.start.live and not self.start.pending and self.start.reserved_bytes == 0


def replay(device: Device) -> Timeline:
    """Peaks over the trace, and the state at its beginning."""
    start, sizes, unmatched = _rewind(device)
    allocated, reserved = start.allocated_bytes, start.reserved_bytes
    peak_allocated, peak_event, peak_reserved = allocated, BEFORE_TRACE, reserved
    frees = _free_action(device.events)
    for index, event in enumerate(device.events):
        if event.action == "alloc":
            allocated += sizes[index]
            if allocated > peak_allocated:
                peak_allocated, peak_event = allocated, index
        elif event.action == frees:
            allocated -= sizes[index]
        elif event.action in _MAPPED:
            reserved += _MAPPED[event.action] * event.size
            peak_reserved = max(peak_reserved, reserved)
    return Timeline(start, sizes, unmatched, peak_allocated, peak_event, peak_reserved, allocated)


def moment(device: Device, timeline: Timeline, event: int) -> Moment:
    """The state after an event."""
    live, pending = dict(timeline.start.live), dict(timeline.start.pending)
    reserved = timeline.start.reserved_bytes
    frees = _free_action(device.events)
    for index, entry in enumerate(device.events[: event + 1]):
        action = entry.action
        if action == "alloc":
            if timeline.sizes[index]:
                live[entry.address] = Live(timeline.sizes[index], entry.frames)
        elif action == frees:
            if timeline.sizes[index]:
                block = live.pop(entry.address)
                if action == "free_requested":
                    pending[entry.address] = block.size
        elif action == "free_completed":
            pending.pop(entry.address, None)
        elif action in _MAPPED:
            reserved += _MAPPED[action] * entry.size
    return Moment(event, live, pending, reserved)


def _rewind(device: Device) -> tuple[Moment, list[int], int]:
    live: dict[int, Live] = {}
    pending: dict[int, int] = {}
    for segment in device.segments:
        for block in segment.blocks:
            if block.state == "active_allocated":
                live[block.address] = Live(block.size, block.frames)
            elif block.state == "pending":
                pending[block.address] = block.size
    reserved = sum(segment.size for segment in device.segments)
    sizes = [0] * len(device.events)
    frees, unmatched = _free_action(device.events), 0
    for index in range(len(device.events) - 1, -1, -1):
        event = device.events[index]
        action, address = event.action, event.address
        if action == "alloc":
            allocated = live.pop(address, None)
            if allocated is None:
                unmatched += 1
            else:
                sizes[index] = allocated.size
        elif action == frees:
            pending.pop(address, None)
            if address in live:
                unmatched += 1
            else:
                sizes[index] = _rounded(event.size)
                live[address] = Live(sizes[index], None)
        elif action == "free_completed":
            pending[address] = _rounded(event.size)
        elif action in _MAPPED:
            reserved -= _MAPPED[action] * event.size
    return Moment(BEFORE_TRACE, live, pending, max(reserved, 0)), sizes, unmatched


def _free_action(events: list[Event]) -> str:
    """What ends an allocation: the completion, where requests were not recorded (`skip_actions`)."""
    return "free_requested" if any(event.action == "free_requested" for event in events) else "free_completed"


def _rounded(size: int) -> int:
    return max(-(-size // BLOCK_BYTES), 1) * BLOCK_BYTES
