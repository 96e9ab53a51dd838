"""Figures of the whole service, for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.db.models import Status
from app.db.session import Database
from app.repositories.jobs import JobRepository
from app.repositories.searches import SearchRepository

LATEST: Final = 100
"""How many searches a figure on recent ones looks at."""


@dataclass(frozen=True)
class ServiceFigures:
    """One reading."""

    searches: Mapping[str, int]
    """By status, all of them."""
    queue_depth: int
    """Jobs that wait for a worker."""
    running: int
    """Jobs that a worker holds."""
    search_seconds: Sequence[float]
    """From request to result, of the searches that succeeded last, shortest first."""


class Figures:
    """Reads the figures from the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> ServiceFigures:
        """What is true now."""
        with self._database.read() as session:
            searches = SearchRepository(session)
            jobs = JobRepository(session)
            return ServiceFigures(
                searches={status.value: searches.count(status) for status in Status},
                queue_depth=jobs.count(Status.QUEUED),
                running=jobs.count(Status.RUNNING),
                search_seconds=sorted(
                    (finished - created).total_seconds() for created, finished in searches.latest_spans(LATEST)
                ),
            )
