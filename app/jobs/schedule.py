"""What is due by the clock or by what has come in. Every worker asks; each slot makes one job.

A slot is looked for as the last one before now, not waited for: one that passed while no worker ran is due when the
next one starts, and of several only the last. That is why the slots are not left to the queue's own schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from app.cron import last_slot
from app.db.base import utc_now
from app.db.models import Job, Status
from app.db.session import Database
from app.repositories.jobs import RETRAIN_JOB, JobRepository
from app.services.retraining import Retraining
from app.services.training import Software
from app.settings import Settings

PURGE_JOB: Final = "purge"


class Scheduler:
    """Stores the jobs that are due and answers their ids."""

    def __init__(self, database: Database, settings: Settings, software: Callable[[], Software]) -> None:
        self._database = database
        self._settings = settings
        self._software = software
        self._retraining = Retraining(database, max_attempts=settings.max_attempts)

    def at_start(self) -> list[str]:
        """What is due when a worker starts."""
        if not self._settings.worker_trains:
            return []
        return _some(self._retraining.at_first_start(self._software))

    def due(self, now: datetime | None = None) -> list[str]:
        """What is due now."""
        settings, now = self._settings, now or self._now()
        due = _some(self._at_slot(PURGE_JOB, settings.purge_cron, now, self._purge))
        if settings.worker_trains:
            if settings.retrain_cron:
                due += _some(self._at_slot(RETRAIN_JOB, settings.retrain_cron, now, self._retraining.at_slot))
            if settings.retrain_after_runs:
                due += _some(self._retraining.after_runs(settings.retrain_after_runs))
        return due

    def _now(self) -> datetime:
        with self._database.read() as session:
            return JobRepository(session).now()

    def _at_slot(self, kind: str, cron: str, now: datetime, make: Callable[[str], str | None]) -> str | None:
        slot = last_slot(cron, now).strftime("%Y-%m-%dT%H:%M")
        with self._database.read() as session:
            jobs = JobRepository(session)
            if jobs.has_slot(kind, slot):
                return None
            is_new = not jobs.has_slot(kind)
        if is_new:
            # Nothing was missed before the schedule was there: it begins with this slot as done.
            self._add_once(kind, slot, state=Status.SUCCEEDED, finished_at=now)
            return None
        return make(slot)

    def _purge(self, slot: str) -> str | None:
        return self._add_once(PURGE_JOB, slot)

    def _add_once(self, kind: str, slot: str, **values: object) -> str | None:
        job = Job(
            kind=kind,
            max_attempts=self._settings.max_attempts,
            created_at=utc_now(),
            schedule=kind,
            slot=slot,
            **values,
        )
        with self._database.write() as session:
            return job.id if JobRepository(session).add_once(job) else None


def _some(job_id: str | None) -> list[str]:
    return [] if job_id is None else [job_id]
