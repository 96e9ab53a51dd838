"""Why a snapshot is not read."""

from __future__ import annotations


class SnapshotRefused(ValueError):
    """The file is no snapshot that can be read."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
