"""A caching allocator in small, which records what PyTorch's does: the snapshots of these tests are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
PYTHON_FRAME = {"filename": "/home/u/train.py", "line": 12, "name": "main"}


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


@dataclass
class Allocator:
    """Segments are given as they come; a block is put into the first gap that is wide enough."""

    frames: bool = True
    time_us: int = 1_700_000_000_000_000
    segments: dict[int, dict[str, Any]] = field(default_factory=dict)
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    next_segment: int = 0x7F0000000000
    reserved: int = 0
    allocated: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0

    def _record(self, action: str, address: int, size: int, stack: Sequence[dict[str, Any]], stream: int = 0) -> None:
        self.time_us += 10
        where = "device_free" if action == "oom" else "addr"
        event: dict[str, Any] = {
            "action": action,
            where: address,
            "size": size,
            "stream": stream,
            "time_us": self.time_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": (0, 0),
        }
        if self.frames:
            event["frames"] = list(stack)
        self.events.append(event)

    def reserve(self, size: int, *, expandable: bool = False, stream: int = 0) -> int:
        address = self.next_segment
        self.next_segment += size + (0 if expandable else 512 * MIB)
        self.segments[address] = {"size": size, "expandable": expandable, "stream": stream}
        self._record("segment_map" if expandable else "segment_alloc", address, size, [], stream)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return address

    def release(self, address: int) -> None:
        segment = self.segments.pop(address)
        action = "segment_unmap" if segment["expandable"] else "segment_free"
        self._record(action, address, segment["size"], [], segment["stream"])
        self.reserved -= segment["size"]

    def allocate(self, requested: int, stack: Sequence[dict[str, Any]] = (PYTHON_FRAME,), *, stream: int = 0) -> int:
        size = max(-(-requested // 512), 1) * 512
        for begin, segment in self.segments.items():
            position = begin
            if segment["stream"] != stream:
                continue
            for address in sorted(address for address in self.blocks if begin <= address < begin + segment["size"]):
                if address - position >= size:
                    break
                position = address + self.blocks[address]["size"]
            if begin + segment["size"] - position >= size:
                return self._allocate_at(position, requested, size, stack, stream)
        raise MemoryError

    def _allocate_at(self, at: int, requested: int, size: int, stack: Sequence[dict[str, Any]], stream: int) -> int:
        self.blocks[at] = {"size": size, "requested": requested, "state": "active_allocated", "frames": list(stack)}
        self._record("alloc", at, requested, stack, stream)
        self.allocated += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return at

    def request_free(self, address: int) -> None:
        block = self.blocks[address]
        block["state"] = "active_pending_free"
        self._record("free_requested", address, block["requested"], [frame("/home/u/train.py", 99, "free")])
        self.allocated -= block["size"]

    def complete_free(self, address: int) -> None:
        block = self.blocks.pop(address)
        self._record("free_completed", address, block["requested"], [frame("/home/u/train.py", 99, "free")])

    def free(self, address: int) -> None:
        self.request_free(address)
        self.complete_free(address)

    def fail(self, size: int, device_free: int, stream: int = 0) -> None:
        self._record("oom", device_free, size, [PYTHON_FRAME], stream)

    def end_segments(self, device: int = 0) -> list[dict[str, Any]]:
        return [self._segment(device, address) for address in self.segments]

    def _segment(self, device: int, begin: int) -> dict[str, Any]:
        segment = self.segments[begin]
        blocks, position = [], begin
        for address in [
            *sorted(address for address in self.blocks if begin <= address < begin + segment["size"]),
            None,
        ]:
            gap_end = begin + segment["size"] if address is None else address
            if gap_end > position:
                size = gap_end - position
                gap = {"address": position, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
                blocks.append(gap)
            if address is not None:
                block = self.blocks[address]
                blocks.append(
                    {
                        "address": address,
                        "size": block["size"],
                        "requested_size": block["requested"],
                        "state": block["state"],
                        "frames": block["frames"] if self.frames else [],
                    }
                )
                position = address + block["size"]
        used = [block for block in blocks if block["state"] == "active_allocated"]
        return {
            "device": device,
            "address": begin,
            "total_size": segment["size"],
            "allocated_size": sum(block["size"] for block in used),
            "active_size": sum(block["size"] for block in blocks if block["state"] != "inactive"),
            "requested_size": sum(block["requested_size"] for block in used),
            "stream": segment["stream"],
            "segment_type": "large" if segment["size"] > 2 * MIB else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": segment["expandable"],
            "frames": [],
            "blocks": blocks,
        }

    def snapshot(self, last_events: int | None = None) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot()` of 2.6 answers; of the ring buffer, the last events."""
        events = self.events if last_events is None else self.events[len(self.events) - last_events :]
        return {
            "segments": self.end_segments(),
            "device_traces": [[dict(event) for event in events], []],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": any(segment["expandable"] for segment in self.segments.values()),
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": {"1": 0, "2": 0},
            },
            "external_annotations": [],
        }
