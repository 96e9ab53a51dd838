"""Queries on jobs: the lease of `claim`, `heartbeat`, `finish` and `expired` that makes background work safe.

At least once: a lease that runs out is claimed again. At most one writer: every statement of a worker names itself as
the owner, so one that was frozen and replaced changes nothing. Each is one statement, alike on SQLite and PostgreSQL.
Leases go by `now`, one clock for all hosts.

One training runs at a time and one more may wait, which two unique indexes hold. So a training that is given back does
not wait beside the next one: it stays `running`, without an owner, and whoever comes first takes it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from app.db.base import UtcDateTime, utc_now
from app.db.models import Job, Status

RETRAIN_JOB = "retrain"
"""The kind of job of which one runs at a time."""


class JobRepository:
    """Jobs in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def now(self) -> datetime:
        """The database's clock: those of the hosts differ, and a lease is given by one and judged by another."""
        if self._session.get_bind().dialect.name == "postgresql":
            return self._session.scalars(select(func.clock_timestamp(type_=UtcDateTime()))).one()
        return utc_now()  # SQLite runs in this process, and all others that use the file run on this host

    def add(self, job: Job) -> None:
        """Insert a job."""
        self._session.add(job)
        self._session.flush()

    def add_once(self, job: Job) -> bool:
        """Insert the job of a schedule's slot, unless another worker did; answers whether it was inserted."""
        try:
            with self._session.begin_nested():
                self._session.add(job)
        except IntegrityError:
            return False
        return True

    def claim(self, job_id: str, owner: str, *, now: datetime, lease_until: datetime) -> Job | None:
        """Take a job that waits, or one whose worker has fallen silent; None if it is not to be had.

        Raises IntegrityError for a training while another one runs.
        """
        return self._session.scalar(
            update(Job)
            .where(Job.id == job_id, _claimable(now), Job.attempt < Job.max_attempts)
            .values(state=Status.RUNNING, owner=owner, lease_until=lease_until, attempt=Job.attempt + 1)
            .returning(Job)
        )

    def heartbeat(self, job_id: str, owner: str, *, lease_until: datetime, has_moved_on: bool = False) -> bool | None:
        """Renew a lease; answers whether cancellation was asked for, or None if the lease is lost.

        A job that has moved on is at its first attempt again: attempts are counted against work that kills its
        workers, not against a long search on hosts that come and go.
        """
        attempt = {"attempt": 1} if has_moved_on else {}
        return self._session.scalar(
            update(Job)
            .where(*_held_by(job_id, owner))
            .values(lease_until=lease_until, **attempt)
            .returning(Job.cancel_requested)
        )

    def finish(
        self, job_id: str, owner: str, state: Status, *, finished_at: datetime, error: str | None = None
    ) -> bool:
        """End a job; False if it is no longer the owner's to end."""
        finished = self._session.scalar(
            update(Job)
            .where(*_held_by(job_id, owner))
            .values(state=state, owner=None, lease_until=None, finished_at=finished_at, error=error)
            .returning(Job.id)
        )
        return finished is not None

    def release(self, job_id: str, owner: str) -> bool:
        """Give a job back, as if this attempt had not been made; False if it is not the owner's."""
        released = self._session.scalar(
            update(Job)
            .where(*_held_by(job_id, owner))
            .values(state=_given_back(), owner=None, lease_until=None, attempt=Job.attempt - 1)
            .returning(Job.id)
        )
        return released is not None

    def take_back(self, worker: str) -> int:
        """Give back the jobs of a worker that is known to be dead; the sweep sees to those on their last attempt."""
        taken = self._session.execute(
            update(Job)
            .where(
                Job.owner.startswith(f"{worker}:", autoescape=True),
                Job.state == Status.RUNNING,
                Job.attempt < Job.max_attempts,
            )
            .values(state=_given_back(), owner=None, lease_until=None)
            .returning(Job.id)
        ).all()
        return len(taken)

    def lock_of_search(self, search_id: str) -> None:
        """Until the transaction ends, no worker takes or gives back a search's job; SQLite has one writer anyway."""
        self._session.execute(select(Job.id).where(Job.search_id == search_id).with_for_update())

    def cancel_queued(self, search_id: str, *, finished_at: datetime) -> bool:
        """End the job of a search that no worker has taken yet; False if there is none."""
        cancelled = self._session.scalar(
            update(Job)
            .where(Job.search_id == search_id, Job.state == Status.QUEUED)
            .values(state=Status.CANCELLED, finished_at=finished_at)
            .returning(Job.id)
        )
        return cancelled is not None

    def request_cancel(self, search_id: str) -> bool:
        """Ask the worker of a search to stop; False if none has it."""
        asked = self._session.scalar(
            update(Job)
            .where(Job.search_id == search_id, Job.state == Status.RUNNING)
            .values(cancel_requested=True)
            .returning(Job.id)
        )
        return asked is not None

    def kind(self, job_id: str) -> str | None:
        """What is to be done; None if there is no such job."""
        return self._session.scalar(select(Job.kind).where(Job.id == job_id))

    def of_version(self, version: int) -> str:
        """The job that is to train a version."""
        query = select(Job.id).where(Job.memory_model_version == version, Job.finished_at.is_(None))
        return self._session.scalars(query).one()

    def may_train(self, job_id: str, now: datetime) -> bool:
        """Whether a training could be claimed: it waits, or its worker has fallen silent, and no other one runs."""
        other = aliased(Job)
        running = exists().where(other.kind == RETRAIN_JOB, other.state == Status.RUNNING, other.id != job_id)
        query = select(Job.id).where(Job.id == job_id, _claimable(now), Job.attempt < Job.max_attempts)
        return self._session.scalar(query.where(~running)) is not None

    def has_slot(self, schedule: str, slot: str | None = None) -> bool:
        """Whether a schedule's slot has its job; without a slot, whether any has."""
        query = select(Job.id).where(Job.schedule == schedule).limit(1)
        return self._session.scalar(query if slot is None else query.where(Job.slot == slot)) is not None

    def expired(self, now: datetime) -> Sequence[str]:
        """Jobs whose worker has fallen silent and that may be tried again."""
        return self._session.scalars(
            select(Job.id)
            .where(Job.state == Status.RUNNING, Job.lease_until < now, Job.attempt < Job.max_attempts)
            .order_by(Job.id)
        ).all()

    def fail_exhausted(self, now: datetime, error: str) -> Sequence[Job]:
        """End the jobs whose last attempt has fallen silent; answers them."""
        return self._session.scalars(
            update(Job)
            .where(Job.state == Status.RUNNING, Job.lease_until < now, Job.attempt >= Job.max_attempts)
            .values(state=Status.FAILED, owner=None, lease_until=None, finished_at=now, error=error)
            .returning(Job)
        ).all()

    def queued(self) -> Sequence[str]:
        """Jobs that no worker has, oldest first."""
        return self._session.scalars(select(Job.id).where(_without_worker()).order_by(Job.id)).all()

    def count(self, state: Status) -> int:
        """How many jobs are in a state."""
        return self._session.scalars(select(func.count()).select_from(Job).where(Job.state == state)).one()

    def purge(self, finished_before: datetime) -> None:
        """Delete scheduled jobs that ended long ago; those of searches go with their search."""
        self._session.execute(delete(Job).where(Job.search_id.is_(None), Job.finished_at < finished_before))


def _without_worker() -> ColumnElement[bool]:
    return or_(Job.state == Status.QUEUED, and_(Job.state == Status.RUNNING, Job.owner.is_(None)))


def _claimable(now: datetime) -> ColumnElement[bool]:
    return or_(_without_worker(), and_(Job.state == Status.RUNNING, Job.lease_until < now))


def _given_back() -> ColumnElement[str]:
    return case((Job.kind == RETRAIN_JOB, Status.RUNNING), else_=Status.QUEUED)


def _held_by(job_id: str, owner: str) -> tuple[ColumnElement[bool], ...]:
    return Job.id == job_id, Job.owner == owner, Job.state == Status.RUNNING
