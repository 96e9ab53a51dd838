"""A worker's hold on a job: taken by `claim`, kept by a heartbeat in a thread, given up by `finish` or `release`."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.base import utc_now
from app.db.models import Job, Status
from app.db.session import DATABASE_AWAY, Database
from app.repositories.jobs import JobRepository
from app.services.held_job import LeaseLost
from app.settings import Settings

log = structlog.get_logger(__name__)


class Lease:
    """One attempt at one job. `renew` and `finish` run inside the caller's transaction, so that what is written with
    them is written by the owner of the job or not at all."""

    def __init__(self, database: Database, job: Job, owner: str, settings: Settings, stop: threading.Event) -> None:
        self.job_id = job.id
        self.kind = job.kind
        self.search_id = job.search_id
        self.memory_model_version = job.memory_model_version
        self.attempt = job.attempt
        self._database = database
        self._owner = owner
        self._duration = timedelta(seconds=settings.lease_seconds)
        self._heartbeat_seconds = settings.heartbeat_seconds
        self._stop = stop
        self._cancelled = threading.Event()
        self._lost = threading.Event()
        self._given_up = threading.Event()
        if job.cancel_requested:
            self._cancelled.set()

    @classmethod
    def claim(
        cls, database: Database, job_id: str, worker: str, settings: Settings, stop: threading.Event
    ) -> Lease | None:
        """Take a job; None if another worker has it or it has ended. `stop` is set when the worker is to end."""
        # Unique for each attempt: the same worker must not take up an attempt it has lost.
        owner = f"{worker}:{secrets.token_hex(4)}"
        try:
            with database.write() as session:
                jobs = JobRepository(session)
                now = jobs.now()
                lease_until = now + timedelta(seconds=settings.lease_seconds)
                job = jobs.claim(job_id, owner, now=now, lease_until=lease_until)
        except IntegrityError:
            # A training, and another one runs: it waits, and a sweep will bring it back.
            return None
        return None if job is None else cls(database, job, owner, settings, stop)

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has asked for the end."""
        return self._cancelled.is_set()

    def should_stop(self) -> bool:
        """Whether to stop working: cancelled, replaced by another worker, or the process is ending."""
        return self._cancelled.is_set() or self._lost.is_set() or self._stop.is_set()

    def renew(self, session: Session, *, has_moved_on: bool = False) -> None:
        """Extend the lease; raises LeaseLost if it is another's by now."""
        jobs = JobRepository(session)
        lease_until = jobs.now() + self._duration
        answer = jobs.heartbeat(self.job_id, self._owner, lease_until=lease_until, has_moved_on=has_moved_on)
        if answer is None:
            self._lost.set()
            raise LeaseLost(self.job_id)
        if answer:
            self._cancelled.set()

    def finish(self, session: Session, state: Status, error: str | None = None) -> None:
        """End the job; raises LeaseLost if it is another's by now."""
        jobs = JobRepository(session)
        if not jobs.finish(self.job_id, self._owner, state, finished_at=utc_now(), error=error):
            raise LeaseLost(self.job_id)
        self._given_up.set()

    def release(self, session: Session) -> None:
        """Leave the job to another worker; raises LeaseLost if it is another's by now."""
        if not JobRepository(session).release(self.job_id, self._owner):
            raise LeaseLost(self.job_id)
        self._given_up.set()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease in a thread while the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), name=f"lease-{self.job_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._heartbeat_seconds):
            try:
                with self._database.write() as session:
                    self.renew(session)
            except LeaseLost:
                if not self._given_up.is_set():
                    log.warning("lease_lost", job_id=self.job_id)
                return
            except DATABASE_AWAY:
                # The database may be back before the lease is over; if not, the lease is lost and `renew` says so.
                log.exception("heartbeat_failed", job_id=self.job_id)
