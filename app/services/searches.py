"""Searches as their clients see them: create, read, list, watch, cancel.

SearchError
├── SearchNotFound        no search has this id
├── SearchEnded           a search that has ended cannot be cancelled
└── IdempotencyConflict   the key was used for another request
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from app.db.base import utc_now
from app.db.models import Job, Search, Status
from app.db.session import Database
from app.repositories.jobs import JobRepository
from app.repositories.searches import SearchRepository, SearchState

SEARCH_JOB = "search"


class SearchError(Exception):
    """Root of the errors of this service."""


class SearchNotFound(SearchError):
    """No search has this id."""

    def __init__(self, search_id: str) -> None:
        super().__init__(f"there is no search {search_id!r}")
        self.search_id = search_id


class SearchEnded(SearchError):
    """A search that has ended cannot be cancelled."""

    def __init__(self, search_id: str, status: Status) -> None:
        super().__init__(f"search {search_id!r} has already ended: {status.value}")
        self.search_id = search_id
        self.status = status


class IdempotencyConflict(SearchError):
    """The idempotency key was used for another request."""

    def __init__(self, key: str, search_id: str) -> None:
        super().__init__(f"the idempotency key {key!r} belongs to search {search_id!r}, which asked for something else")
        self.key = key
        self.search_id = search_id


@dataclass(frozen=True)
class SearchPage:
    """Some searches, newest first, without their results; and where the next page begins, if there is one."""

    items: Sequence[Search]
    next_after: tuple[datetime, str] | None


class SearchService:
    """Use cases on searches. `wake` tells the queue that a job waits; it is called after the job is committed."""

    def __init__(self, database: Database, *, wake: Callable[[str], None], max_attempts: int) -> None:
        self._database = database
        self._wake = wake
        self._max_attempts = max_attempts

    def create(
        self, request: Mapping[str, Any], *, labels: Mapping[str, str], idempotency_key: str | None = None
    ) -> Search:
        """Store a search and its job in one transaction. `request` is the validated body as JSON.

        The same key with the same request answers the search that exists; with another one raises IdempotencyConflict.
        """
        digest = request_sha256(request)
        existing = self._created_before(idempotency_key, digest)
        if existing is not None:
            return existing
        now = utc_now()
        search = Search(
            created_at=now, request=dict(request), idempotency_key=idempotency_key, request_sha256=digest, result=None
        )
        job = Job(kind=SEARCH_JOB, max_attempts=self._max_attempts, created_at=now)
        try:
            with self._database.write() as session:
                SearchRepository(session).add(search, labels)
                job.search_id = search.id
                JobRepository(session).add(job)
        except IntegrityError:
            # Two requests with one key at the same moment: the other one was first.
            existing = self._created_before(idempotency_key, digest)
            if existing is None:
                raise
            return existing
        self._wake(job.id)
        return self.get(search.id)

    def get(self, search_id: str) -> Search:
        """A search with its result; raises SearchNotFound."""
        with self._database.read() as session:
            search = SearchRepository(session).get(search_id)
        if search is None:
            raise SearchNotFound(search_id)
        return search

    def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        status: Status | None = None,
        label: tuple[str, str | None] | None = None,
    ) -> SearchPage:
        """A page of searches, newest first. `after`: `next_after` of the page before; `label`: (name, value or None).

        The items carry no `result`: reading it raises.
        """
        with self._database.read() as session:
            found = SearchRepository(session).page(limit=limit + 1, after=after, status=status, label=label)
        items = found[:limit]
        return SearchPage(items, (items[-1].created_at, items[-1].id) if len(found) > limit else None)

    def state(self, search_id: str) -> SearchState:
        """Status, progress and revision (grows with each change); raises SearchNotFound. Cheap enough to poll."""
        with self._database.read() as session:
            state = SearchRepository(session).state(search_id)
        if state is None:
            raise SearchNotFound(search_id)
        return state

    def cancel(self, search_id: str) -> Search:
        """End a waiting search at once, ask the worker of a running one to stop; raises SearchNotFound, SearchEnded."""
        now = utc_now()
        with self._database.write() as session:
            searches, jobs = SearchRepository(session), JobRepository(session)
            jobs.lock_of_search(search_id)
            if jobs.cancel_queued(search_id, finished_at=now):
                searches.finish(search_id, Status.CANCELLED, finished_at=now)
            elif not jobs.request_cancel(search_id):
                state = searches.state(search_id)
                if state is None:
                    raise SearchNotFound(search_id)
                raise SearchEnded(search_id, state.status)
        return self.get(search_id)

    def _created_before(self, idempotency_key: str | None, digest: str) -> Search | None:
        if idempotency_key is None:
            return None
        with self._database.read() as session:
            search = SearchRepository(session).by_idempotency_key(idempotency_key)
        if search is not None and search.request_sha256 != digest:
            raise IdempotencyConflict(idempotency_key, search.id)
        return search


def request_sha256(request: Mapping[str, Any]) -> str:
    """A hash that is the same for the same request, whatever the order of its fields."""
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
