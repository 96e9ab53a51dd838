"""What a memory snapshot tells; nothing of it is kept."""

from __future__ import annotations

from typing import Any, BinaryIO

from app.memory_snapshots import SnapshotRefused, inspect_snapshot
from cost_models.errors import InvalidInput


def explain_snapshot(file: BinaryIO) -> dict[str, Any]:
    """Figures and advice; raises InvalidInput where the file is no snapshot that can be read."""
    try:
        return inspect_snapshot(file)
    except SnapshotRefused as refused:
        raise InvalidInput(("file",), refused.code, refused.message) from None
