"""Queries of a training on the logged runs: which are there, which are new, all of them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.models import Run

BLOCK = 1_000
"""Rows that are fetched at a time."""


class LoggedRuns:
    """The logged runs in one session, in the order of their ids, which is that of their logging."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def newest_id(self) -> str | None:
        """The id of the run that was logged last."""
        return self._session.scalar(select(func.max(Run.id)))

    def count_after(self, run_id: str | None) -> int:
        """How many runs were logged after one; None: all of them."""
        query = select(func.count()).select_from(Run)
        return self._session.scalars(query if run_id is None else query.where(Run.id > run_id)).one()

    def contents(self) -> Iterator[tuple[str, str]]:
        """Id and content hash of each run."""
        query = select(Run.id, Run.content_sha256).order_by(Run.id).execution_options(yield_per=BLOCK)
        for row in self._session.execute(query):
            yield row.id, row.content_sha256

    def records(self) -> Iterator[tuple[str, dict[str, Any], datetime]]:
        """Id, record and time of logging of each run."""
        query = select(Run.id, Run.record, Run.created_at).order_by(Run.id).execution_options(yield_per=BLOCK)
        for row in self._session.execute(query):
            yield row.id, row.record, row.created_at
