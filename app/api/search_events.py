"""A search as server-sent events, read from the database: whichever process works on it, whichever is asked."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync
from fastapi.sse import ServerSentEvent

from app.db.session import DATABASE_AWAY
from app.services.searches import SearchService

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 0.25
AWAY_SECONDS: Final = 2.0
"""Between looks at a database that does not answer."""
LIFE_SECONDS: Final = 600.0
"""A connection ends after this; the client comes back with the id of the last event it saw."""
RETRY_MILLISECONDS: Final = 1000


async def watch(
    searches: SearchService,
    search_id: str,
    *,
    last_event_id: str | None = None,
    poll_seconds: float = POLL_SECONDS,
    away_seconds: float = AWAY_SECONDS,
    life_seconds: float = LIFE_SECONDS,
) -> AsyncIterator[ServerSentEvent]:
    """`progress` with each change, then `done` with the status. Event ids are the search's revisions.

    While the database is away nothing is told; the stream goes on when it is back.
    """
    seen = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else -1
    ends_at = time.monotonic() + life_seconds
    while True:
        try:
            state = await run_sync(searches.state, search_id)
        except DATABASE_AWAY:
            # Browsers do not come back to a stream that they find answered by an error, so it outlives the outage.
            log.warning("watch_waits", search_id=search_id)
            if time.monotonic() >= ends_at:
                return
            await anyio.sleep(away_seconds)
            continue
        identifier = str(state.revision)
        if state.revision > seen and state.progress is not None:
            seen = state.revision
            yield ServerSentEvent(data=state.progress, event="progress", id=identifier, retry=RETRY_MILLISECONDS)
        if state.status.is_final:
            yield ServerSentEvent(data={"status": state.status.value}, event="done", id=identifier)
            return
        if time.monotonic() >= ends_at:
            return
        await anyio.sleep(poll_seconds)
