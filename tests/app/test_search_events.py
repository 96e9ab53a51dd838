"""The event stream of one search, as it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from fastapi.sse import ServerSentEvent
from sqlalchemy.exc import OperationalError

from app.api.search_events import watch
from app.db.models import Status
from app.repositories.searches import SearchState


@dataclass
class ScriptedSearches:
    """Answers one state after another, then the last one for ever."""

    states: Sequence[SearchState | Exception]
    asked: int = field(default=0)

    def state(self, search_id: str) -> SearchState:
        self.asked += 1
        state = self.states[min(self.asked, len(self.states)) - 1]
        if isinstance(state, Exception):
            raise state
        return state


def events(states: Sequence[SearchState | Exception], **options: Any) -> list[ServerSentEvent]:
    async def collect() -> list[ServerSentEvent]:
        searches: Any = ScriptedSearches(states)
        return [event async for event in watch(searches, "id", poll_seconds=0, away_seconds=0, **options)]

    return anyio.run(collect)


RUNNING = SearchState(Status.RUNNING, {"phase": "study"}, 2)
QUEUED = SearchState(Status.QUEUED, None, 0)
DONE = SearchState(Status.SUCCEEDED, {"phase": "ranking"}, 3)


def test_each_change_is_told_once() -> None:
    told = events([QUEUED, RUNNING, RUNNING, DONE])
    assert [(event.event, event.id, event.data) for event in told] == [
        ("progress", "2", {"phase": "study"}),
        ("progress", "3", {"phase": "ranking"}),
        ("done", "3", {"status": "succeeded"}),
    ]


def test_a_client_that_comes_back_goes_on_where_it_was() -> None:
    assert [event.event for event in events([RUNNING, DONE], last_event_id="2")] == ["progress", "done"]
    assert [event.event for event in events([DONE], last_event_id="3")] == ["done"]


def test_a_stream_outlives_an_outage_of_the_database() -> None:
    away = OperationalError("SELECT", {}, Exception("the connection is closed"))
    told = events([RUNNING, away, away, DONE])
    assert [(event.event, event.id) for event in told] == [("progress", "2"), ("progress", "3"), ("done", "3")]
    assert events([away], life_seconds=0) == []


def test_an_odd_last_event_id_is_no_event() -> None:
    assert [event.event for event in events([DONE], last_event_id="²")] == ["progress", "done"]


def test_a_connection_does_not_live_for_ever() -> None:
    assert [event.event for event in events([RUNNING], life_seconds=0)] == ["progress"]
