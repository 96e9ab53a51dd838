"""Queries on searches, their labels and their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session, selectinload, undefer

from app.db.models import Search, SearchLabel, Status, StoredTrial


@dataclass(frozen=True)
class SearchState:
    """What a watcher of a search needs to know."""

    status: Status
    progress: dict[str, Any] | None
    revision: int


@dataclass(frozen=True)
class BegunWith:
    """What a search uses from its first claim to its end."""

    version: int | None
    """Of what was learned; None: the formulas alone."""


class SearchRepository:
    """Searches in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, search: Search, labels: Mapping[str, str]) -> None:
        """Insert a search with its labels."""
        search.label_rows = [SearchLabel(name=name, value=value) for name, value in sorted(labels.items())]
        self._session.add(search)
        self._session.flush()

    def get(self, search_id: str) -> Search | None:
        """A search with its result."""
        return self._session.scalar(
            select(Search)
            .where(Search.id == search_id)
            .options(undefer(Search.result), selectinload(Search.label_rows))
        )

    def by_idempotency_key(self, key: str) -> Search | None:
        """The search that was created under a key, with its result."""
        return self._session.scalar(
            select(Search)
            .where(Search.idempotency_key == key)
            .options(undefer(Search.result), selectinload(Search.label_rows))
        )

    def page(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None,
        status: Status | None,
        label: tuple[str, str | None] | None,
    ) -> Sequence[Search]:
        """Newest first, after the given (created_at, id); without results. `label` is (name, value or None)."""
        query = select(Search).options(selectinload(Search.label_rows))
        if after is not None:
            query = query.where(tuple_(Search.created_at, Search.id) < after)
        if status is not None:
            query = query.where(Search.status == status)
        if label is not None:
            name, value = label
            labelled = select(SearchLabel.search_id).where(SearchLabel.name == name)
            if value is not None:
                labelled = labelled.where(SearchLabel.value == value)
            query = query.where(Search.id.in_(labelled))
        return self._session.scalars(query.order_by(Search.created_at.desc(), Search.id.desc()).limit(limit)).all()

    def state(self, search_id: str) -> SearchState | None:
        """The status and progress of a search, without the rest."""
        row = self._session.execute(
            select(Search.status, Search.progress, Search.revision).where(Search.id == search_id)
        ).one_or_none()
        return None if row is None else SearchState(Status(row.status), row.progress, row.revision)

    def count(self, status: Status) -> int:
        """How many searches have a status."""
        return self._session.scalars(select(func.count()).select_from(Search).where(Search.status == status)).one()

    def latest_spans(self, limit: int) -> Sequence[tuple[datetime, datetime]]:
        """When the searches that succeeded last were created and finished, newest first."""
        query = select(Search.created_at, Search.finished_at).where(Search.status == Status.SUCCEEDED)
        rows = self._session.execute(query.order_by(Search.finished_at.desc()).limit(limit)).all()
        return [(row.created_at, row.finished_at) for row in rows]

    def request(self, search_id: str) -> dict[str, Any]:
        """What was asked, as it was stored."""
        request: dict[str, Any] = self._session.scalars(select(Search.request).where(Search.id == search_id)).one()
        return request

    def begun_with(self, search_id: str) -> BegunWith | None:
        """What an earlier attempt at a search used; None if this is the first."""
        row = self._session.execute(
            select(Search.status, Search.memory_model_version).where(Search.id == search_id)
        ).one()
        return None if row.status == Status.QUEUED else BegunWith(row.memory_model_version)

    def mark_running(self, search_id: str, *, memory_model_version: int | None) -> None:
        """A worker has begun, with a version of what was learned or without any."""
        self._change(search_id, status=Status.RUNNING, memory_model_version=memory_model_version)

    def set_progress(self, search_id: str, progress: Mapping[str, Any]) -> None:
        """How far the search is."""
        self._change(search_id, progress=dict(progress))

    def finish(
        self,
        search_id: str,
        status: Status,
        *,
        finished_at: datetime,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """The end of a search: what came out, or why nothing did."""
        self._change(
            search_id,
            status=status,
            finished_at=finished_at,
            result=None if result is None else dict(result),
            error=None if error is None else dict(error),
        )

    def add_trials(self, search_id: str, trials: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Insert a block of scored trials in one statement."""
        if trials:
            rows = [{"search_id": search_id, "number": number, "body": dict(body)} for number, body in trials]
            self._session.execute(insert(StoredTrial), rows)

    def trials(self, search_id: str) -> Sequence[dict[str, Any]]:
        """The stored trials, in the order of their numbers."""
        return self._session.scalars(
            select(StoredTrial.body).where(StoredTrial.search_id == search_id).order_by(StoredTrial.number)
        ).all()

    def purge(self, finished_before: datetime) -> int:
        """Delete searches that ended long ago, with all that hangs on them; answers how many."""
        deleted = self._session.execute(
            delete(Search).where(Search.finished_at < finished_before).returning(Search.id)
        ).all()
        return len(deleted)

    def _change(self, search_id: str, **values: Any) -> None:
        self._session.execute(
            update(Search).where(Search.id == search_id).values(revision=Search.revision + 1, **values)
        )
