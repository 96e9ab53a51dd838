"""How often a client may call: a moving window, in memory or in Redis by URL."""

from __future__ import annotations

import math
import time
from typing import Final

from limits import RateLimitItem, parse
from limits.storage import storage_from_string
from limits.strategies import MovingWindowRateLimiter

from app.errors import TooManyRequests

UNLIMITED: Final = ""


class RateLimiter:
    """Counts the requests of each caller. `limit` in the notation of `limits` (`600/minute`); empty: no limit."""

    def __init__(self, limit: str, storage_url: str) -> None:
        self._limit: RateLimitItem | None = None if limit == UNLIMITED else parse(limit)
        self._limiter = MovingWindowRateLimiter(storage_from_string(storage_url))

    def hit(self, caller: str) -> None:
        """Count one request; raises TooManyRequests."""
        if self._limit is None or self._limiter.hit(self._limit, caller):
            return
        reset_time = self._limiter.get_window_stats(self._limit, caller).reset_time
        raise TooManyRequests(math.ceil(reset_time - time.time()))
