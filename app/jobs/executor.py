"""What a worker does with a job id that the queue hands it: claim, work by kind, end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import structlog

from app.db.base import utc_now
from app.db.models import Job, Status
from app.db.session import DATABASE_AWAY, Database
from app.jobs.lease import Lease
from app.repositories.jobs import JobRepository
from app.repositories.searches import SearchRepository
from app.services.held_job import LeaseLost
from app.services.search_runs import SearchRunner, Solve, worker_lost
from app.services.searches import SEARCH_JOB
from app.settings import Settings

log = structlog.get_logger(__name__)

PURGE_JOB = "purge"


class JobExecutor:
    """Runs jobs of this worker, one at a time. `stop` ends the one that runs and gives it back."""

    def __init__(self, database: Database, settings: Settings, solve: Solve, *, worker: str) -> None:
        self._database = database
        self._settings = settings
        self._worker = worker
        self._searches = SearchRunner(database, solve)
        self._stop = threading.Event()

    def execute(self, job_id: str) -> None:
        """Run a job, unless another worker has it or it has ended: then the message was a repetition."""
        if self._stop.is_set():
            return
        lease = Lease.claim(self._database, job_id, self._worker, self._settings, self._stop)
        if lease is None:
            return
        with structlog.contextvars.bound_contextvars(job_id=job_id, search_id=lease.search_id):
            log.info("job_claimed", kind=lease.kind, attempt=lease.attempt)
            try:
                with lease.kept():
                    self._run(lease)
            except LeaseLost:
                log.warning("job_lost")
            except DATABASE_AWAY:
                # Nothing can be written down now. The lease runs out, and the job is tried again.
                log.exception("job_abandoned")

    def stop(self) -> None:
        """End the job that runs, and take no other."""
        self._stop.set()

    def schedule_purge(self, slot: str) -> str | None:
        """Insert the purge of a slot of the schedule; None if another worker did."""
        job = Job(
            kind=PURGE_JOB,
            max_attempts=self._settings.max_attempts,
            created_at=utc_now(),
            schedule=PURGE_JOB,
            slot=slot,
        )
        with self._database.write() as session:
            return job.id if JobRepository(session).add_once(job) else None

    def sweep(self) -> list[str]:
        """End what cannot be tried again; answer the jobs that wait for a worker."""
        now = utc_now()
        with self._database.write() as session:
            jobs = JobRepository(session)
            for job in jobs.fail_exhausted(now, "the worker was lost"):
                log.error("job_given_up", job_id=job.id, search_id=job.search_id, attempts=job.attempt)
                if job.search_id is not None:
                    SearchRepository(session).finish(
                        job.search_id, Status.FAILED, finished_at=now, error=worker_lost(job.attempt)
                    )
            return [*jobs.expired(now), *jobs.queued()]

    def queued(self) -> Sequence[str]:
        """The jobs that no worker has taken."""
        with self._database.read() as session:
            return JobRepository(session).queued()

    def _run(self, lease: Lease) -> None:
        if lease.kind == SEARCH_JOB and lease.search_id is not None:
            self._searches.run(lease.search_id, lease)
        elif lease.kind == PURGE_JOB:
            self._purge(lease)
        else:
            raise ValueError(f"job {lease.job_id} is of a kind this worker does not know: {lease.kind!r}")

    def _purge(self, lease: Lease) -> None:
        before = utc_now() - timedelta(days=self._settings.retention_days)
        with self._database.write() as session:
            purged = SearchRepository(session).purge(before)
            JobRepository(session).purge(before)
            lease.finish(session, Status.SUCCEEDED)
        log.info("purged", searches=purged)
