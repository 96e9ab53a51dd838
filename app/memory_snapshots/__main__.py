"""The process that reads one snapshot: the file is its standard input, the report in JSON its output."""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import sys
from typing import Any

from app.memory_snapshots.plain_pickle import load_plain
from app.memory_snapshots.refusal import SnapshotRefused
from app.memory_snapshots.report import report
from app.memory_snapshots.snapshot import read_snapshot


def main(most_bytes: int, most_seconds: int) -> None:
    """Read, and write what was found or why it is refused."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # plain values, read once: nothing to collect, and millions of containers to look at
    try:
        answer = _read()
    except SnapshotRefused as refused:
        answer = {"refused": {"code": refused.code, "message": refused.message}}
    except MemoryError:
        answer = {"refused": {"code": "snapshot_too_large", "message": "the snapshot takes too much memory to read"}}
    json.dump(answer, sys.stdout)


def _read() -> dict[str, Any]:
    if os.fstat(sys.stdin.fileno()).st_size == 0:  # cannot be mapped
        raise SnapshotRefused("not_a_pickle", "the file is empty")
    with mmap.mmap(sys.stdin.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return report(read_snapshot(load_plain(data)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
