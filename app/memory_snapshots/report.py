"""The figures of a snapshot as plain values, GiB."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from app.memory_snapshots.advice import Advice, Peak, Shortage, advise
from app.memory_snapshots.free_memory import LARGE_REQUEST_BYTES, FreeBlocks, free_blocks
from app.memory_snapshots.refusal import SnapshotRefused
from app.memory_snapshots.sites import KINDS, Site, sites
from app.memory_snapshots.snapshot import Device, Snapshot
from app.memory_snapshots.timeline import Moment, Timeline, moment, replay
from cost_models.units import GIB

MOST_SITES: Final = 20
DECIMALS: Final = 9
"""About a byte of a GiB."""


def report(snapshot: Snapshot) -> dict[str, Any]:
    """Peaks over all devices, then each device: peaks, fragmentation, allocation sites, advice."""
    if not snapshot.devices:
        raise SnapshotRefused("snapshot_empty", "the snapshot holds no memory: nothing was allocated on any GPU")
    setting = snapshot.settings.get("expandable_segments")
    expandable = bool(setting) if setting is not None else None
    devices = [_device(device, expandable) for device in snapshot.devices]
    return {
        "peak_allocated_gib": max(device["peak_allocated_gib"] for device in devices),
        "peak_reserved_gib": max(device["peak_reserved_gib"] for device in devices),
        "out_of_memory": any(device["out_of_memory"] is not None for device in devices),
        "devices": devices,
        "allocator_settings": dict(snapshot.settings),
    }


def _device(device: Device, expandable: bool | None) -> dict[str, Any]:
    timeline = replay(device)
    at_peak = moment(device, timeline, timeline.peak_allocated_event)
    held = sites(at_peak.live.values())
    by_kind: dict[str, int] = defaultdict(int)
    for site in held:
        by_kind[site.kind] += site.bytes
    request, stream = _next_request(device, timeline.peak_allocated_event)
    free = free_blocks(device, at_peak, large=request is None or request > LARGE_REQUEST_BYTES, stream=stream)
    everything = Peak(at_peak.allocated_bytes, at_peak.reserved_bytes, free, by_kind)
    failures = [index for index, event in enumerate(device.events) if event.action == "oom"]
    failed = _shortage(device, timeline, failures[-1]) if failures else None
    used = expandable or any(segment.expandable for segment in device.segments) or None
    return {
        "device": device.index,
        "peak_allocated_gib": _gib(timeline.peak_allocated_bytes),
        "peak_reserved_gib": _gib(timeline.peak_reserved_bytes),
        "allocated_at_end_gib": _gib(timeline.allocated_at_end_bytes),
        "reserved_at_end_gib": _gib(sum(segment.size for segment in device.segments)),
        "fragmentation": _fragmentation(at_peak, free, request),
        "out_of_memory": None if failed is None else _failure(failed, len(failures)),
        "gib_by_kind": {kind: _gib(by_kind[kind]) for kind in KINDS if by_kind[kind]},
        "sites": [_site(site, at_peak.allocated_bytes) for site in held[:MOST_SITES]],
        "advice": [_advice(found) for found in advise(everything, failed, expandable=used if used else expandable)],
        "events": len(device.events),
        "notes": _notes(device, timeline),
    }


def _next_request(device: Device, event: int) -> tuple[int | None, int | None]:
    """What is asked for next after an event, and on which stream; (None, None): nothing."""
    for entry in device.events[event + 1 :]:
        if entry.action in ("alloc", "oom"):
            return entry.size, entry.stream
    return None, None


def _fragmentation(at_peak: Moment, free: FreeBlocks, request: int | None) -> dict[str, Any]:
    return {
        "allocated_gib": _gib(at_peak.allocated_bytes),
        "reserved_gib": _gib(at_peak.reserved_bytes),
        "reserved_minus_allocated_gib": _gib(at_peak.reserved_bytes - at_peak.allocated_bytes),
        "free_gib": _gib(free.total_bytes),
        "free_blocks": free.count,
        "largest_free_block_gib": _gib(free.largest_bytes),
        "next_request_gib": None if request is None else _gib(request),
        "next_request_fits": None if request is None else request <= free.largest_bytes,
    }


def _shortage(device: Device, timeline: Timeline, event: int) -> Shortage:
    failed = device.events[event]
    large = failed.size > LARGE_REQUEST_BYTES
    free = free_blocks(device, moment(device, timeline, event), large=large, stream=failed.stream)
    return Shortage(failed.size, failed.device_free, free)


def _failure(shortage: Shortage, count: int) -> dict[str, Any]:
    return {
        "failures": count,
        "request_gib": _gib(shortage.request_bytes),
        "device_free_gib": _gib(shortage.device_free_bytes),
        "free_gib": _gib(shortage.free.total_bytes),
        "free_blocks": shortage.free.count,
        "largest_free_block_gib": _gib(shortage.free.largest_bytes),
        "missing_gib": _gib(shortage.missing_bytes),
    }


def _site(site: Site, allocated: int) -> dict[str, Any]:
    return {
        "kind": site.kind,
        "frames": list(site.frames),
        "gib": _gib(site.bytes),
        "blocks": site.blocks,
        "share": round(site.bytes / max(allocated, 1), DECIMALS),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {"code": advice.code, "message": advice.message, "gib": _gib(advice.bytes)}


def _notes(device: Device, timeline: Timeline) -> list[str]:
    notes = []
    if not device.events:
        notes.append(
            "no history was recorded (torch.cuda.memory._record_memory_history): the peaks are of the end only"
        )
    elif not timeline.complete:
        notes.append("memory was in use before the recorded history begins: earlier peaks are not seen")
    if device.events:
        notes.append(
            "events hold sizes before rounding: of blocks freed within the history, unsplit remainders are not counted "
            "in what is allocated"
        )
    if timeline.unmatched_events:
        notes.append(f"{timeline.unmatched_events} events lack their counterpart and are left out of what is allocated")
    if device.unknown_events:
        notes.append(f"{device.unknown_events} events are of a kind that this version does not know")
    return notes


def _gib(size: int) -> float:
    return round(size / GIB, DECIMALS)
