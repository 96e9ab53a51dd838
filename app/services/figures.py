"""Figures of the whole service, for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.db.models import ModelState, Status
from app.db.session import Database
from app.repositories.jobs import JobRepository
from app.repositories.memory_models import MemoryModelRepository
from app.repositories.runs import RunRepository
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
    runs: int
    """Logged ones."""
    runs_since_training: int
    """Logged since the last training began, or was asked for."""
    memory_models: Mapping[str, int]
    """Versions by state."""
    serving_version: int | None
    """Of the memory model."""
    training_seconds: float | None
    """Of the last training that ended with a model."""


class Figures:
    """Reads the figures from the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> ServiceFigures:
        """What is true now."""
        with self._database.read() as session:
            searches = SearchRepository(session)
            jobs, runs, models = JobRepository(session), RunRepository(session), MemoryModelRepository(session)
            by_state, newest, trained = models.count_by_state(), models.newest(), models.newest_trained()
            return ServiceFigures(
                searches={status.value: searches.count(status) for status in Status},
                queue_depth=jobs.count(Status.QUEUED),
                running=jobs.count(Status.RUNNING),
                search_seconds=sorted(
                    (finished - created).total_seconds() for created, finished in searches.latest_spans(LATEST)
                ),
                runs=runs.count_after(None),
                runs_since_training=runs.count_after(newest.last_run_id if newest else None),
                memory_models={state.value: by_state.get(state, 0) for state in ModelState},
                serving_version=models.serving_version(),
                training_seconds=trained.report["seconds"] if trained and trained.report else None,
            )
