"""When a new version is trained: asked for, at the first start, at the slots of a schedule, after new runs.

However many ask at once, one training waits at most. Version numbers are taken first and looked for a training that
waits after that: whoever did the same in between has taken the same number, which only one can insert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.base import utc_now
from app.db.models import Job, MemoryModel, ModelState, ModelTrigger, Status
from app.db.session import Database
from app.repositories.jobs import RETRAIN_JOB, JobRepository
from app.repositories.memory_models import MemoryModelRepository
from app.repositories.runs import RunRepository
from app.services.training import Software, training_set_sha256

ATTEMPTS = 10
"""How often a transaction is tried again that others were ahead of."""
NEW_SHARE = 100
"""New runs make for a training when they are one in so many of those known: learning costs in proportion to these."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Asked:
    """A training that waits."""

    version: int
    job_id: str
    is_new: bool
    """Whether a worker is to be woken for it; else the training waited already."""


class Retraining:
    """Asks for trainings. The jobs that come back are committed and want a worker woken."""

    def __init__(self, database: Database, *, max_attempts: int) -> None:
        self._database = database
        self._max_attempts = max_attempts

    def ask(self, trigger: ModelTrigger) -> Asked:
        """A training as soon as may be; the one that waits, if one does."""
        return self._write(lambda session: self._ask(session, trigger))

    def at_first_start(self, software: Callable[[], Software]) -> str | None:
        """Version 1 where none was trained; a new one where this software cannot read the last. Answers a job or None.

        `software` is called where there is a version to compare with.
        """
        with self._database.read() as session:
            models = MemoryModelRepository(session)
            newest, trained = models.newest(), models.newest_trained()
        if newest is not None and newest.state in (ModelState.QUEUED, ModelState.RUNNING):
            return None
        if trained is not None and software().reads(trained):
            return None

        def ask(session: Session) -> str | None:
            now_newest = MemoryModelRepository(session).newest()
            if (now_newest and now_newest.version) != (newest and newest.version):
                return None  # another worker came first
            return _new(self._ask(session, ModelTrigger.FIRST_START))

        return self._write(ask)

    def at_slot(self, slot: str) -> str | None:
        """The training of a slot, unless another worker has seen to it; answers a job, or None where none is needed.

        Where all runs are known already, or a training waits, the slot is entered as done by that version.
        """
        with self._database.read() as session:
            if JobRepository(session).has_slot(RETRAIN_JOB, slot):
                return None
            sha256 = training_set_sha256(session)

        def ask(session: Session) -> str | None:
            jobs, models = JobRepository(session), MemoryModelRepository(session)
            if jobs.has_slot(RETRAIN_JOB, slot):
                return None
            trained, waiting = models.newest_trained(), models.queued_version()
            if waiting is None and trained is not None and trained.runs_sha256 == sha256:
                waiting = trained.version
            if waiting is None:
                return _new(self._ask(session, ModelTrigger.SCHEDULE, slot))
            jobs.add(self._job(waiting, slot, state=Status.SUCCEEDED, finished_at=utc_now()))
            return None

        return self._write(ask)

    def after_runs(self, count: int) -> str | None:
        """A training if so many runs are new since the last one began, or was asked for; answers a job or None."""

        def is_due(session: Session) -> bool:
            models = MemoryModelRepository(session)
            newest, trained = models.newest(), models.newest_trained()
            if newest is None or newest.state == ModelState.QUEUED:
                return False
            # Of the last that ended: the one that runs, or that failed, does not say how many it knows.
            known = (trained and trained.runs) or 0
            return RunRepository(session).count_after(newest.last_run_id) >= max(count, known // NEW_SHARE)

        def ask(session: Session) -> str | None:
            return _new(self._ask(session, ModelTrigger.NEW_RUNS)) if is_due(session) else None

        with self._database.read() as session:
            if not is_due(session):
                return None
        return self._write(ask)

    def _ask(self, session: Session, trigger: ModelTrigger, slot: str | None = None) -> Asked:
        models = MemoryModelRepository(session)
        newest = models.newest()
        if (waiting := models.queued_version()) is not None:
            return Asked(waiting, JobRepository(session).of_version(waiting), is_new=False)
        version = 1 if newest is None else newest.version + 1
        models.add(
            MemoryModel(
                version=version,
                trigger=trigger,
                created_at=utc_now(),
                last_run_id=RunRepository(session).newest_id(),
            )
        )
        job = self._job(version, slot)
        JobRepository(session).add(job)
        return Asked(version, job.id, is_new=True)

    def _job(self, version: int, slot: str | None, **values: object) -> Job:
        return Job(
            kind=RETRAIN_JOB,
            memory_model_version=version,
            max_attempts=self._max_attempts,
            created_at=utc_now(),
            schedule=None if slot is None else RETRAIN_JOB,
            slot=slot,
            **values,
        )

    def _write(self, ask: Callable[[Session], Answer]) -> Answer:
        for _ in range(ATTEMPTS - 1):
            try:
                with self._database.write() as session:
                    return ask(session)
            except IntegrityError:
                continue
        with self._database.write() as session:
            return ask(session)


def _new(asked: Asked) -> str | None:
    return asked.job_id if asked.is_new else None
