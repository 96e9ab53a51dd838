"""A snapshot as checked values: segments, blocks and events of each device.

Source: the docstring of `torch.cuda.memory._snapshot`, and torch/csrc/cuda/{Module,memory_snapshot}.cpp, PyTorch 2.0 to
2.13. Of PyTorch 2.0, blocks say their frames and requested size under `history`. `size` of a block is what the
allocator's statistics count, `requested_size` (and the `size` of an event) what was asked for before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from app.memory_snapshots.refusal import SnapshotRefused

Frames = list[Any]
"""Innermost first; checked where they are read (`sites`), since most never are."""

ACTIONS: Final = frozenset(
    (
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
    )
)
_PENDING: Final = ("active_pending_free", "active_awaiting_free")
_STATES: Final = ("active_allocated", "inactive", *_PENDING)
_LARGEST: Final = 2**64
MOST_DEVICES: Final = 256
"""Twice what PyTorch is ever built for (C10_COMPILE_TIME_MAX_GPUS is 120)."""
LONGEST_SETTING: Final = 1000
SMALL_SEGMENT_BYTES: Final = 2 * 2**20
"""Segments of the pool for small blocks have this size (kSmallBuffer in c10/cuda/CUDACachingAllocator)."""


class Block(NamedTuple):
    """A piece of a segment."""

    address: int
    size: int
    state: str
    frames: Frames | None


class Segment(NamedTuple):
    """Memory that the allocator holds of the device."""

    address: int
    size: int
    stream: int
    large: bool
    expandable: bool
    blocks: list[Block]


class Event(NamedTuple):
    """One entry of a device's trace, oldest first."""

    action: str
    address: int
    """Of an `oom`: 0."""
    size: int
    stream: int
    device_free: int
    """Of an `oom`: bytes that the device still had; else 0."""
    frames: Frames | None


@dataclass(frozen=True)
class Device:
    """What a snapshot holds of one device."""

    index: int
    segments: list[Segment]
    events: list[Event]
    unknown_events: int
    """Entries whose action this version does not know; they are left out of `events`."""


@dataclass(frozen=True)
class Snapshot:
    """All devices that hold memory or have a trace."""

    devices: list[Device]
    settings: Mapping[str, str | int | float | bool]
    """`allocator_settings` as torch wrote them; empty before PyTorch 2.1."""


def read_snapshot(plain: Any) -> Snapshot:
    """Check the values of an unpickled snapshot; raises SnapshotRefused naming the place."""
    if type(plain) is not dict or "segments" not in plain:
        raise _wrong("segments", "is missing: this is not what torch.cuda.memory._dump_snapshot writes")
    segments: dict[int, list[Segment]] = {}
    for number, raw in enumerate(_list(plain, "segments", "segments")):
        where = f"segments.{number}"
        segment = _segment(_dict(raw, where), where)
        segments.setdefault(_integer(raw, "device", where, 0), []).append(segment)
    traces = _list(plain, "device_traces", "device_traces") if "device_traces" in plain else []
    events = [_events(trace, f"device_traces.{number}") for number, trace in enumerate(traces)]
    if max(len(traces), *segments, 0) > MOST_DEVICES:
        raise _wrong("device", f"must be below {MOST_DEVICES}")
    known = sorted({*segments, *(index for index, (found, _) in enumerate(events) if found)})
    devices = [
        Device(index, segments.get(index, []), *(events[index] if index < len(events) else ([], 0))) for index in known
    ]
    return Snapshot(devices, _settings(plain.get("allocator_settings")))


def _segment(raw: dict[str, Any], where: str) -> Segment:
    address, size = _integer(raw, "address", where), _integer(raw, "total_size", where)
    blocks = []
    position = address
    for number, entry in enumerate(_list(raw, "blocks", where)):
        block = _block(_dict(entry, f"{where}.blocks.{number}"), f"{where}.blocks.{number}", position)
        position = block.address + block.size
        blocks.append(block)
    if position != address + size:
        raise _wrong(where, f"its blocks end {position - address - size} bytes after its total_size")
    return Segment(
        address,
        size,
        _integer(raw, "stream", where, 0),
        raw.get("segment_type") != "small",
        raw.get("is_expandable") is True,
        blocks,
    )


def _block(raw: dict[str, Any], where: str, position: int) -> Block:
    state = raw.get("state")
    if state not in _STATES:
        raise _wrong(where, f"state must be one of {', '.join(_STATES)}")
    frames = raw.get("frames")
    if frames is None and type(history := raw.get("history")) is list and history and type(history[0]) is dict:
        frames = history[0].get("frames")
    address = _integer(raw, "address", where, position)
    if address != position:
        raise _wrong(where, "address does not follow from the blocks before it")
    return Block(
        address,
        _integer(raw, "size", where),
        "pending" if state in _PENDING else state,
        frames if type(frames) is list and frames else None,
    )


def _events(trace: Any, where: str) -> tuple[list[Event], int]:
    if type(trace) is not list:
        raise _wrong(where, "must be a list")
    events, unknown = [], 0
    for number, raw in enumerate(trace):
        if type(raw) is not dict:
            raise _wrong(f"{where}.{number}", "must be a dictionary")
        action = raw.get("action")
        if type(action) is not str or action not in ACTIONS:
            unknown += 1
            continue
        place = f"{where}.{number}"
        frames = raw.get("frames")
        failed = action == "oom"
        events.append(
            Event(
                action,
                0 if failed else _integer(raw, "addr", place),
                _integer(raw, "size", place),
                _integer(raw, "stream", place, 0),
                _integer(raw, "device_free", place) if failed else 0,
                frames if type(frames) is list and frames else None,
            )
        )
        trace[number] = None  # what was a dictionary is a tuple now: both at once would double the memory
    return events, unknown


def _settings(raw: Any) -> dict[str, str | int | float | bool]:
    if type(raw) is not dict:
        return {}
    return {
        name: value
        for name, value in raw.items()
        if type(name) is str and len(name) <= LONGEST_SETTING and _is_setting(value)
    }


def _is_setting(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= LONGEST_SETTING
    return type(value) in (int, bool) or (type(value) is float and math.isfinite(value))


def _integer(raw: dict[str, Any], name: str, where: str, default: int | None = None) -> int:
    value = raw.get(name, default)
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise _wrong(f"{where}.{name}", "must be a whole number of 64 bits, not negative")
    return value


def _list(raw: dict[str, Any], name: str, where: str) -> list[Any]:
    value = raw.get(name)
    if type(value) is not list:
        raise _wrong(f"{where}.{name}" if where != name else name, "must be a list")
    return value


def _dict(raw: Any, where: str) -> dict[str, Any]:
    if type(raw) is not dict:
        raise _wrong(where, "must be a dictionary")
    return raw


def _wrong(where: str, message: str) -> SnapshotRefused:
    return SnapshotRefused("not_a_snapshot", f"{where} {message}")
