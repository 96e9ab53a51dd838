"""What a worker does with a job id that the queue hands it: claim, work by kind, end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import structlog

from app.db.base import utc_now
from app.db.models import ModelState, Status
from app.db.session import DATABASE_AWAY, Database
from app.db.study_storage import StudyStorage
from app.jobs.lease import Lease
from app.jobs.schedule import PURGE_JOB
from app.repositories.jobs import RETRAIN_JOB, JobRepository
from app.repositories.memory_models import MemoryModelRepository
from app.repositories.searches import SearchRepository
from app.services.held_job import LeaseLost
from app.services.search_runs import SearchRunner, Solve, worker_lost
from app.services.searches import SEARCH_JOB
from app.services.training import Train, TrainingRunner
from app.settings import Settings

log = structlog.get_logger(__name__)


class JobExecutor:
    """Runs jobs of this worker, one at a time. `stop` ends the one that runs and gives it back."""

    def __init__(self, database: Database, settings: Settings, solve: Solve, train: Train, *, worker: str) -> None:
        self._database = database
        self._settings = settings
        self._worker = worker
        self._searches = SearchRunner(database, solve)
        self._trainings = TrainingRunner(database, train)
        self._stop = threading.Event()

    def execute(self, job_id: str) -> None:
        """Run a job, unless another worker has it or it has ended: then the message was a repetition."""
        if self._stop.is_set():
            return
        lease = Lease.claim(self._database, job_id, self._worker, self._settings, self._stop)
        if lease is None:
            return
        about = {"search_id": lease.search_id, "memory_model_version": lease.memory_model_version}
        with structlog.contextvars.bound_contextvars(
            job_id=job_id, **{name: value for name, value in about.items() if value is not None}
        ):
            log.info("job_claimed", kind=lease.kind, attempt=lease.attempt)
            try:
                with lease.kept():
                    self._run(lease)
            except LeaseLost:
                log.warning("job_lost")
            except DATABASE_AWAY:
                # Nothing can be written down now. The lease runs out, and the job is tried again.
                log.exception("job_abandoned")

    def prepare(self) -> None:
        """Do ahead what the first search would wait for."""
        self._searches.prepare()

    def stop(self) -> None:
        """End the job that runs, and take no other."""
        self._stop.set()

    def is_training(self, job_id: str) -> bool:
        """Whether a job trains, and so wants a process of its own."""
        with self._database.read() as session:
            return JobRepository(session).kind(job_id) == RETRAIN_JOB

    def may_train(self, job_id: str) -> bool:
        """Whether a training is to be had now."""
        if self._stop.is_set() or not self._settings.worker_trains:
            return False
        with self._database.read() as session:
            jobs = JobRepository(session)
            return jobs.may_train(job_id, jobs.now())

    def sweep(self) -> list[str]:
        """End what cannot be tried again; answer the jobs that wait for a worker."""
        with self._database.write() as session:
            jobs = JobRepository(session)
            now = jobs.now()
            for job in jobs.fail_exhausted(now, "the worker was lost"):
                log.error("job_given_up", job_id=job.id, kind=job.kind, attempts=job.attempt)
                error = worker_lost(job.attempt)
                if job.search_id is not None:
                    SearchRepository(session).finish(job.search_id, Status.FAILED, finished_at=now, error=error)
                elif job.kind == RETRAIN_JOB and job.memory_model_version is not None:
                    MemoryModelRepository(session).change(
                        job.memory_model_version, state=ModelState.FAILED, error=error["detail"]
                    )
            return [*jobs.expired(now), *jobs.queued()]

    def queued(self) -> Sequence[str]:
        """The jobs that no worker has taken."""
        with self._database.read() as session:
            return JobRepository(session).queued()

    def _run(self, lease: Lease) -> None:
        if lease.kind == SEARCH_JOB and lease.search_id is not None:
            self._searches.run(lease.search_id, lease)
        elif lease.kind == RETRAIN_JOB and lease.memory_model_version is not None:
            self._trainings.run(lease.memory_model_version, lease)
        elif lease.kind == PURGE_JOB:
            self._purge(lease)
        else:
            raise ValueError(f"job {lease.job_id} is of a kind this worker does not know: {lease.kind!r}")

    def _purge(self, lease: Lease) -> None:
        before = utc_now() - timedelta(days=self._settings.retention_days)
        with self._database.write() as session:
            purged = SearchRepository(session).purge(before)
            JobRepository(session).purge(before)
            MemoryModelRepository(session).purge(before)
            lease.finish(session, Status.SUCCEEDED)
        studies = StudyStorage(self._database)
        log.info("purged", searches=purged, studies=studies.purge())
        studies.dispose()
