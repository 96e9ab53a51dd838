"""Queries on measured runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.models import Run

FILTERS: Final = ("source", "framework", "gpu", "cluster")
"""Columns that lists filter by, each with its index."""
KEYS_AT_ONCE: Final = 5_000
"""Of one statement: SQLite binds 32,766 values at most, PostgreSQL 65,535."""
ROWS_AT_ONCE: Final = 1_000
"""Fetched together where all runs are read."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The run that a key belongs to."""

    run_id: str
    content_sha256: str


class RunRepository:
    """Runs in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add_missing(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows whose keys nobody has used; columns by name, all of them.

        One that another transaction is inserting is waited for. In the order of their keys, so that two transactions
        with the same keys wait for one another in one direction only.
        """
        connection = self._session.connection()
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        statement = insert(Run).on_conflict_do_nothing(index_elements=["key"])
        connection.execute(statement, sorted(rows, key=lambda row: row["key"]))

    def by_keys(self, keys: Sequence[str]) -> dict[str, StoredKey]:
        """The runs of those keys that are known."""
        found: dict[str, StoredKey] = {}
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[start : start + KEYS_AT_ONCE]
            rows = self._session.execute(select(Run.key, Run.id, Run.content_sha256).where(Run.key.in_(some)))
            found |= {key: StoredKey(run_id, content) for key, run_id, content in rows}
        return found

    def get(self, run_id: str) -> Run | None:
        """A run."""
        return self._session.get(Run, run_id)

    def delete(self, run_id: str) -> bool:
        """Delete a run; answers whether there was one."""
        return self._session.scalar(delete(Run).where(Run.id == run_id).returning(Run.id)) is not None

    def page(self, *, limit: int, after: tuple[datetime, str] | None, filters: Mapping[str, str]) -> Sequence[Run]:
        """Newest first, after the given (created_at, id); `filters`: values by names of FILTERS."""
        query = select(Run)
        if after is not None:
            query = query.where(tuple_(Run.created_at, Run.id) < after)
        for column in FILTERS:
            if column in filters:
                query = query.where(getattr(Run, column) == filters[column])
        return self._session.scalars(query.order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)).all()

    def stream(self) -> Iterator[tuple[str, datetime, dict[str, Any]]]:
        """(id, created_at, record) of every run, oldest first, a block at a time."""
        query = select(Run.id, Run.created_at, Run.record).order_by(Run.id)
        for row in self._session.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}):
            yield row.id, row.created_at, row.record

    def newest_id(self) -> str | None:
        """The id of the run that was logged last."""
        return self._session.scalar(select(func.max(Run.id)))

    def count_after(self, run_id: str | None) -> int:
        """How many runs were logged after a run, which may be deleted by now; None: all."""
        query = select(func.count()).select_from(Run)
        if run_id is not None:
            query = query.where(Run.id > run_id)
        return self._session.scalars(query).one()

    def ids_sha256(self) -> str:
        """What the set of all runs hashes to, as `app.services.runs.LoggedRuns` has it; reads an index only."""
        digest = hashlib.sha256()
        query = select(Run.id).order_by(Run.id)
        for run_id in self._session.scalars(query, execution_options={"yield_per": ROWS_AT_ONCE}):
            digest.update(run_id.encode())
        return digest.hexdigest()
