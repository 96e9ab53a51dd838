"""When a search has to stop: its budget of seconds, or someone who cancelled it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from search.result import StoppedBy


@dataclass(frozen=True)
class Watch:
    """The clock of one search; asked between blocks."""

    clock: Callable[[], float]
    """Seconds, monotonic."""
    cancelled: Callable[[], bool]
    started_at: float
    seconds: float

    def stopped_by(self) -> StoppedBy | None:
        """Why the search has to stop now, if it has to."""
        if self.cancelled():
            return "cancelled"
        return "seconds" if self.elapsed_seconds() >= self.seconds else None

    def elapsed_seconds(self) -> float:
        """Since the search began."""
        return self.clock() - self.started_at
