"""The tables.

searches ─┬─ search_labels   one row a label, so that lists filter by an index
          ├─ trials          what a search has scored: its checkpoint
          └─ jobs            who works on it, until when (the truth about background work)
api_keys
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from app.db.base import Base, new_id


class Status(StrEnum):
    """Where a search or a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing happens to it any more."""
        return self not in (Status.QUEUED, Status.RUNNING)


_STATUS_LIST = ", ".join(f"'{status}'" for status in Status)


class Search(Base):
    """One search: what was asked, how far it is, what came out."""

    __tablename__ = "searches"
    __table_args__ = (
        CheckConstraint(f"status IN ({_STATUS_LIST})", name="status_known"),
        UniqueConstraint("idempotency_key"),
        Index("ix_searches_created_at_id", "created_at", "id"),
        Index("ix_searches_status_created_at_id", "status", "created_at", "id"),
        Index("ix_searches_finished_at", "finished_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    status: Mapped[str] = mapped_column(String(16), default=Status.QUEUED)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    request: Mapped[dict[str, Any]]
    progress: Mapped[dict[str, Any] | None]
    revision: Mapped[int] = mapped_column(default=0)
    """Grows with every change that a watcher should see; the id of its event."""
    result: Mapped[dict[str, Any] | None] = mapped_column(deferred=True, deferred_raiseload=True)
    error: Mapped[dict[str, Any] | None]
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str] = mapped_column(String(64))

    label_rows: Mapped[list[SearchLabel]] = relationship(
        lazy="raise", cascade="all, delete-orphan", passive_deletes=True, order_by="SearchLabel.name"
    )

    @property
    def labels(self) -> dict[str, str]:
        """The labels by name."""
        return {row.name: row.value for row in self.label_rows}


class SearchLabel(Base):
    """One label of a search."""

    __tablename__ = "search_labels"
    __table_args__ = (Index("ix_search_labels_name_value", "name", "value"),)

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    value: Mapped[str] = mapped_column(String(256))


class StoredTrial(Base):
    """One scored trial of a search, as the search describes it."""

    __tablename__ = "trials"

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[dict[str, Any]]


class Job(Base):
    """A piece of background work and the lease on it."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATUS_LIST})", name="state_known"),
        # Every worker runs the schedule; the first to insert a slot owns it.
        UniqueConstraint("schedule", "slot"),
        Index("ix_jobs_state_lease_until", "state", "lease_until"),
        Index("ix_jobs_search_id", "search_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(32))
    search_id: Mapped[str | None] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(String(16), default=Status.QUEUED)
    attempt: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int]
    owner: Mapped[str | None] = mapped_column(String(255))
    lease_until: Mapped[datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    schedule: Mapped[str | None] = mapped_column(String(64))
    slot: Mapped[str | None] = mapped_column(String(32))


class ApiKey(Base):
    """A key to the API: its public prefix and the hash of its secret, never the secret."""

    __tablename__ = "api_keys"
    __table_args__ = (UniqueConstraint("prefix"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(255))
    prefix: Mapped[str] = mapped_column(String(16))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
