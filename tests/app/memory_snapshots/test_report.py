"""Peaks by replaying the trace, fragmentation, sites and advice, on snapshots of a small allocator."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.memory_snapshots.free_memory import free_blocks, held_memory
from app.memory_snapshots.refusal import SnapshotRefused
from app.memory_snapshots.report import report
from app.memory_snapshots.snapshot import read_snapshot
from app.memory_snapshots.timeline import moment, replay
from tests.app.memory_snapshots.allocator import MIB, Allocator, frame

GIB = 2**30
SITE = "/opt/venv/lib/python3.11/site-packages/"
CALL = frame(SITE + "torch/nn/modules/module.py", 1751, "_wrapped_call_impl")
LINEAR = [frame(SITE + "torch/nn/modules/linear.py", 125, "forward"), CALL, frame("/home/u/model.py", 40, "forward")]
TRAIN = frame("/home/u/train.py", 12, "main")
LOSS = [frame(SITE + "torch/nn/functional.py", 3462, "cross_entropy"), frame("/home/u/train.py", 30, "step")]
FSDP = [
    frame("/pytorch/c10/cuda/CUDACachingAllocator.cpp", 0, "malloc"),
    frame(SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 205, "foreach_all_gather"),
    frame(SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 300, "unshard"),
    CALL,
    frame("/home/u/train.py", 28, "step"),
]
ADAM = [frame(SITE + "torch/optim/adamw.py", 100, "_init_group"), TRAIN]
BACKWARD = [frame(SITE + "torch/autograd/graph.py", 824, "_engine_run_backward"), frame("/home/u/train.py", 31, "step")]
MODEL = [frame("/home/u/model.py", 12, "__init__"), TRAIN]


def of(snapshot: dict[str, Any]) -> dict[str, Any]:
    return report(read_snapshot(copy.deepcopy(snapshot)))


def device(snapshot: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = of(snapshot)["devices"][0]
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [advice["code"] for advice in found["advice"]]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["allocate", "free", "request_free", "reserve", "grow", "release"]), st.integers(0, 99)),
    max_size=60,
)


def run(actions: list[tuple[str, int]]) -> Allocator:
    allocator = Allocator()
    allocator.reserve(8 * MIB)
    for action, number in actions:
        live = [address for address, block in allocator.blocks.items() if block["state"] == "active_allocated"]
        if action == "allocate" and sum(block["size"] for block in allocator.blocks.values()) < 4 * MIB:
            try:
                allocator.allocate(1 + number * 10_000)
            except MemoryError:
                continue
        elif action == "free" and live:
            allocator.free(live[number % len(live)])
        elif action == "request_free" and live:
            allocator.request_free(live[number % len(live)])
        elif action in ("reserve", "grow"):
            allocator.reserve((4 + 2 * (number % 10)) * MIB, expandable=action == "grow")
        elif action == "release":
            empty = [
                begin
                for begin, segment in allocator.segments.items()
                if not any(begin <= address < begin + segment["size"] for address in allocator.blocks)
            ]
            if empty:
                allocator.release(empty[number % len(empty)])
    return allocator


@given(ACTIONS)
def test_the_replay_finds_the_peaks(actions: list[tuple[str, int]]) -> None:
    allocator = run(actions)
    [first, *_] = read_snapshot(allocator.snapshot()).devices
    timeline = replay(first)
    assert timeline.complete
    assert timeline.unmatched_events == 0
    assert timeline.peak_allocated_bytes == allocator.peak_allocated
    assert timeline.peak_reserved_bytes == allocator.peak_reserved
    assert timeline.allocated_at_end_bytes == allocator.allocated


@given(ACTIONS, st.integers(0, 60))
def test_a_ring_buffer_that_wrapped_gives_the_peaks_of_what_is_left(actions: list[tuple[str, int]], kept: int) -> None:
    allocator = run(actions)
    kept = min(kept, len(allocator.events))
    snapshot = allocator.snapshot(kept)
    if not snapshot["segments"] and not kept:
        return
    # What was in use and held after each of the events that are left, and before them.
    allocated = reserved = 0
    seen_allocated, seen_reserved = [0], [0]
    for event in allocator.events:
        size = -(-event["size"] // 512) * 512
        allocated += {"alloc": size, "free_requested": -size}.get(event["action"], 0)
        change = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
        reserved += change.get(event["action"], 0) * event["size"]
        seen_allocated.append(allocated)
        seen_reserved.append(reserved)
    found = device(snapshot)
    assert found["peak_allocated_gib"] * GIB == pytest.approx(max(seen_allocated[-kept - 1 :]), abs=2)
    assert found["peak_reserved_gib"] * GIB == pytest.approx(max(seen_reserved[-kept - 1 :]), abs=2)


@given(ACTIONS, st.integers(0, 60))
def test_what_is_free_and_what_is_used_is_what_is_held(actions: list[tuple[str, int]], kept: int) -> None:
    allocator = run(actions)
    [first, *_] = read_snapshot(allocator.snapshot(min(kept, len(allocator.events)))).devices or [None]
    if first is None:
        return
    timeline = replay(first)
    for event in range(-1, len(first.events)):
        then = moment(first, timeline, event)
        held = sum(part.end - part.begin for part in held_memory(first, event))
        free = [free_blocks(first, then, large=large, stream=None).total_bytes for large in (False, True)]
        assert held == then.reserved_bytes
        assert sum(free) == held - then.allocated_bytes - sum(then.pending.values())


class TestShortage:
    """Four blocks of 256 MiB, of which two that are not neighbours are freed; then 400 MiB are asked for."""

    def snapshot(self, *, device_free: int = 0) -> dict[str, Any]:
        allocator = Allocator()
        allocator.reserve(GIB)
        blocks = [allocator.allocate(256 * MIB, LINEAR) for _ in range(4)]
        allocator.free(blocks[0])
        allocator.free(blocks[2])
        allocator.fail(400 * MIB, device_free)
        return allocator.snapshot()

    def test_of_contiguous_memory(self) -> None:
        found = device(self.snapshot())
        assert found["out_of_memory"] == {
            "failures": 1,
            "request_gib": 0.390625,
            "device_free_gib": 0.0,
            "free_gib": 0.5,
            "free_blocks": 2,
            "largest_free_block_gib": 0.25,
            "missing_gib": 0.0,
        }
        [advice] = found["advice"]
        assert advice["code"] == "expandable_segments"
        assert advice["gib"] == 0.5
        assert "0.39 GiB failed while 0.50 GiB were free in 2 blocks, the largest of 0.25 GiB" in advice["message"]

    def test_not_advised_where_it_is_on(self) -> None:
        snapshot = self.snapshot()
        snapshot["allocator_settings"]["expandable_segments"] = True
        assert "expandable_segments" not in codes(device(snapshot))

    def test_of_memory(self) -> None:
        allocator = Allocator()
        allocator.reserve(GIB)
        for _ in range(4):
            allocator.allocate(256 * MIB, LINEAR)
        allocator.fail(400 * MIB, 100 * MIB)
        found = device(allocator.snapshot())
        assert found["out_of_memory"]["missing_gib"] == pytest.approx(300 / 1024)
        assert codes(found) == ["activation_checkpointing", "micro_batch"]
        assert "enough for the 0.29 GiB missing" in found["advice"][1]["message"]

    def test_blocks_of_another_stream_do_not_serve_it(self) -> None:
        allocator = Allocator()
        allocator.reserve(GIB, stream=7)
        allocator.reserve(GIB)
        allocator.allocate(GIB, LINEAR)
        allocator.fail(400 * MIB, 0)
        assert device(allocator.snapshot())["out_of_memory"]["free_gib"] == 0


class TestFragmentation:
    def test_at_the_peak(self) -> None:
        allocator = Allocator()
        allocator.reserve(512 * MIB)
        blocks = [allocator.allocate(64 * MIB, LINEAR) for _ in range(8)]
        for address in blocks[::2]:
            allocator.free(address)
        allocator.reserve(512 * MIB)
        allocator.allocate(500 * MIB, LINEAR)
        allocator.allocate(8 * MIB, LINEAR)
        allocator.allocate(2 * MIB, LINEAR)  # the peak: 256 + 510 MiB
        allocator.free(blocks[1])
        allocator.allocate(3 * MIB, LINEAR)
        found = device(allocator.snapshot())["fragmentation"]
        assert {name: value * 1024 for name, value in found.items() if name.endswith("_gib")} == pytest.approx(
            {
                "allocated_gib": 766,
                "reserved_gib": 1024,
                "reserved_minus_allocated_gib": 258,
                "free_gib": 258,
                "largest_free_block_gib": 64,
                "next_request_gib": 3,
            }
        )
        assert found["free_blocks"] == 5  # beside the four, what the 8 and the 2 MiB blocks left of one and the end
        assert found["next_request_fits"] is True


class TestSites:
    def snapshot(self) -> dict[str, Any]:
        allocator = Allocator()
        allocator.reserve(GIB)
        for stack, size in (
            (MODEL, 100),
            (FSDP, 400),
            (LINEAR, 60),
            (LINEAR, 40),
            (LOSS, 150),
            (BACKWARD, 50),
            (ADAM, 100),
        ):
            allocator.allocate(size * MIB, stack)
        return allocator.snapshot()

    def test_by_kind(self) -> None:
        found = device(self.snapshot())
        assert {kind: value * 1024 for kind, value in found["gib_by_kind"].items()} == pytest.approx(
            {"buckets": 400, "logits": 150, "optimizer": 100, "backward": 50, "parameters": 100, "activations": 100}
        )
        assert codes(found) == ["smaller_buckets", "chunked_loss", "activation_checkpointing", "micro_batch"]

    def test_library_frames_are_folded(self) -> None:
        sites = device(self.snapshot())["sites"]
        assert sites[0]["frames"] == ["_fsdp_collectives.py:205:foreach_all_gather", "train.py:28:step"]
        [activation] = [site for site in sites if site["kind"] == "activations"]
        assert activation["frames"] == ["linear.py:125:forward", "model.py:40:forward"]
        assert (activation["blocks"], activation["gib"]) == (2, pytest.approx(100 / 1024))
        assert sum(site["share"] for site in sites) == pytest.approx(1)

    def test_what_the_ring_has_lost_is_named_where_it_is_still_live(self) -> None:
        snapshot = self.snapshot()
        snapshot["device_traces"] = []
        found = device(snapshot)
        assert found["sites"] == device(self.snapshot())["sites"]
        assert any("no history was recorded" in note for note in found["notes"])

    def test_stacks_may_not_be_recorded(self) -> None:
        allocator = Allocator(frames=False)
        allocator.reserve(GIB)
        allocator.allocate(100 * MIB)
        [site] = device(allocator.snapshot())["sites"]
        assert (site["kind"], site["frames"]) == ("unrecorded", [])


class TestVersions:
    def test_of_pytorch_2_0(self) -> None:
        """Frames and the size that was asked for are in `history`; no addresses of blocks, no settings."""
        block = {"size": MIB, "state": "active_allocated"}
        history = [{"addr": 512 * MIB, "frames": LINEAR, "real_size": MIB - 100}]
        segment = {
            "device": 3,
            "address": 512 * MIB,
            "total_size": 2 * MIB,
            "allocated_size": MIB,
            "active_size": MIB,
            "stream": 0,
            "segment_type": "small",
            "blocks": [block | {"history": history}, {"size": MIB, "state": "inactive"}],
        }
        found = of({"segments": [segment], "device_traces": [[], [], [], []]})
        assert found["peak_allocated_gib"] == pytest.approx(MIB / GIB, abs=1e-9)
        assert found["peak_reserved_gib"] == pytest.approx(2 * MIB / GIB, abs=1e-9)
        assert [item["device"] for item in found["devices"]] == [3]
        assert found["devices"][0]["sites"][0]["frames"] == ["linear.py:125:forward", "model.py:40:forward"]

    def test_requests_to_free_may_be_skipped(self) -> None:
        allocator = Allocator()
        allocator.reserve(GIB)
        for _ in range(3):
            allocator.free(allocator.allocate(100 * MIB))
        snapshot = allocator.snapshot()
        snapshot["device_traces"][0] = [e for e in snapshot["device_traces"][0] if e["action"] != "free_requested"]
        assert device(snapshot)["peak_allocated_gib"] == pytest.approx(100 / 1024, abs=1e-9)

    def test_frees_may_be_skipped(self) -> None:
        allocator = Allocator()
        allocator.reserve(GIB)
        kept = allocator.allocate(100 * MIB)
        allocator.free(allocator.allocate(200 * MIB))
        snapshot = allocator.snapshot()
        snapshot["device_traces"][0] = [e for e in snapshot["device_traces"][0] if "free" not in e["action"]]
        found = device(snapshot)
        assert kept
        assert found["peak_allocated_gib"] == pytest.approx(100 / 1024, abs=1e-9)
        assert any(note.startswith("1 events lack their counterpart") for note in found["notes"])

    def test_events_of_another_kind_are_counted(self) -> None:
        snapshot = Allocator().snapshot()
        snapshot["device_traces"][0] = [{"action": "alloc", "addr": 1, "size": 1}, {"action": "teleport"}]
        assert any(note.startswith("1 events are of a kind") for note in device(snapshot)["notes"])

    def test_two_devices(self) -> None:
        first, second = Allocator(), Allocator(next_segment=0x7E0000000000)
        first.reserve(GIB)
        second.reserve(2 * GIB)
        second.allocate(3 * MIB)
        snapshot = first.snapshot()
        snapshot["segments"] += second.end_segments(device=1)
        snapshot["device_traces"][1] = second.events
        found = of(snapshot)
        assert [item["peak_reserved_gib"] for item in found["devices"]] == [1, 2]
        assert (found["peak_reserved_gib"], found["peak_allocated_gib"]) == (2, pytest.approx(3 / 1024, abs=1e-9))


def broken(**changes: Any) -> dict[str, Any]:
    allocator = Allocator()
    allocator.reserve(GIB)
    allocator.allocate(MIB)
    snapshot = allocator.snapshot()
    snapshot["segments"][0] |= changes
    return snapshot


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "segments is missing"),
        ({}, "segments is missing"),
        ({"segments": 1}, "segments must be a list"),
        ({"segments": [1]}, r"segments\.0 must be a dictionary"),
        ({"segments": [], "device_traces": [1]}, r"device_traces\.0 must be a list"),
        ({"segments": [], "device_traces": [[1]]}, r"device_traces\.0\.0 must be a dictionary"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, r"device_traces\.0\.0\.addr must be a whole"),
        (broken(total_size=2 * GIB), "its blocks end"),
        (broken(total_size=True), r"segments\.0\.total_size must be a whole"),
        (broken(address=-1), r"segments\.0\.address"),
        (broken(device=10**6), "device must be below"),
        (broken(blocks=[{"state": "odd"}]), r"segments\.0\.blocks\.0 state must be one of"),
        ({"segments": []}, "holds no memory"),
    ],
)
def test_what_is_no_snapshot_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(SnapshotRefused, match=message):
        report(read_snapshot(plain))


@pytest.mark.parametrize("frames", [[1], [{"filename": 1, "name": "f", "line": 1}], [{}]])
def test_odd_frames_are_refused(frames: Any) -> None:
    snapshot = broken()
    snapshot["device_traces"] = []
    snapshot["segments"][0]["blocks"][0]["frames"] = frames
    with pytest.raises(SnapshotRefused, match="frame of a stack"):
        of(snapshot)
