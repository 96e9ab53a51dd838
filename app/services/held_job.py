"""What a use case that runs in a worker needs to know of the job it works on."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy.orm import Session

from app.db.models import Status


class LeaseLost(Exception):
    """Another worker has taken the job: nothing more may be written for this attempt."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} belongs to another worker now")


class HeldJob(Protocol):
    """A job that this worker holds. The methods raise LeaseLost, which rolls the caller's transaction back."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has asked for the end."""
        ...

    def should_stop(self) -> bool:
        """Whether to stop working, for whatever reason."""
        ...

    def renew(self, session: Session, *, has_moved_on: bool = False) -> None:
        """Make sure that what this transaction writes is still ours to write. `has_moved_on`: it writes what another
        worker will not have to do again."""
        ...

    def finish(self, session: Session, state: Status, error: str | None = None) -> None:
        """End the job together with what this transaction writes."""
        ...

    def release(self, session: Session) -> None:
        """Leave the job to another worker."""
        ...
