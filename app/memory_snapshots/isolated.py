"""Reads a snapshot in a process of its own, so that a hostile one costs a bounded time and memory and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

import app
from app.memory_snapshots.refusal import SnapshotRefused

MOST_BYTES: Final = 5 * 2**30
"""Of address space: an upload takes up to about seven times its size."""
MOST_SECONDS: Final = 120
"""Of a core, and twice as long in all."""
_KILLED: Final = (-signal.SIGKILL, -signal.SIGXCPU, -signal.SIGSEGV)
_ONE_AT_A_TIME: Final = threading.BoundedSemaphore(1)
"""Several large ones together would take more memory than one service should."""


def inspect_snapshot(file: BinaryIO) -> dict[str, Any]:
    """The report (`report.report`) of a snapshot in an open file with a descriptor; raises SnapshotRefused."""
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    with _ONE_AT_A_TIME:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "app.memory_snapshots", str(MOST_BYTES), str(MOST_SECONDS)],
                stdin=file.fileno(),
                capture_output=True,
                cwd=Path(app.__file__).parents[1],
                env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
                timeout=2 * MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _too_large() from None
    if done.returncode in _KILLED:
        raise _too_large()
    if done.returncode != 0:
        raise RuntimeError(f"reading a memory snapshot failed: {done.stderr[-2000:].decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "refused" in answer:
        raise SnapshotRefused(**answer["refused"])
    return answer


def _too_large() -> SnapshotRefused:
    return SnapshotRefused(
        "snapshot_too_large",
        "the snapshot takes more memory or time to read than is allowed; record fewer events (max_entries)",
    )
