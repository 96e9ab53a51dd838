"""A snapshot is read in a process of its own, within bounds."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from app.memory_snapshots import SnapshotRefused, inspect_snapshot, isolated
from tests.app.memory_snapshots.allocator import MIB, Allocator


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as opened:
        yield opened


def small() -> dict[str, Any]:
    allocator = Allocator()
    allocator.reserve(1024 * MIB)
    allocator.free(allocator.allocate(512 * MIB))
    return allocator.snapshot()


def test_reads_a_file(file: BinaryIO) -> None:
    pickle.dump(small(), file)
    file.flush()
    found = inspect_snapshot(file)
    assert (found["peak_allocated_gib"], found["peak_reserved_gib"], found["out_of_memory"]) == (0.5, 1.0, False)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "not_a_pickle"),
        (b"GIF89a", "not_a_pickle"),
        (b"\x80\x04]", "pickle_damaged"),
        (pickle.dumps([]), "not_a_snapshot"),
        (pickle.dumps(Path("/")), "pickle_not_plain"),
    ],
)
def test_says_why_it_is_refused(file: BinaryIO, content: bytes, code: str) -> None:
    file.write(content)
    file.flush()
    with pytest.raises(SnapshotRefused) as refused:
        inspect_snapshot(file)
    assert refused.value.code == code


def test_memory_is_bounded(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million empty dictionaries of one byte each would take 700 MiB."""
    monkeypatch.setattr(isolated, "MOST_BYTES", 200 * MIB)
    file.write(b"\x80\x04]")
    for _ in range(10):
        file.write(b"(" + b"}" * 10**6 + b"e")
    file.write(b".")
    file.flush()
    with pytest.raises(SnapshotRefused) as refused:
        inspect_snapshot(file)
    assert refused.value.code == "snapshot_too_large"


def test_time_is_bounded(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    pickle.dump(small(), file)
    file.flush()
    monkeypatch.setattr(isolated, "MOST_SECONDS", 0)
    with pytest.raises(SnapshotRefused) as refused:
        inspect_snapshot(file)
    assert refused.value.code == "snapshot_too_large"


def test_needs_a_file_with_a_descriptor() -> None:
    with pytest.raises(io.UnsupportedOperation):
        inspect_snapshot(io.BytesIO(b""))
