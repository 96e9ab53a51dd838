"""The tables.

searches ─┬─ search_labels   one row a label, so that lists filter by an index
          ├─ search_trials   what a search has scored: its checkpoint
          ├─ measured_trials what it gave out to be run, and what the runs gave (the truth about them; Optuna's study
          │                  of the same trials is in its own tables, `trials` among them, of the same database)
          └─ jobs            who works on it, until when (the truth about background work)
memory_models ─ jobs         a version of what was learned, and the job that trains it
runs                         measured runs, as they were logged
api_keys
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
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


class ModelState(StrEnum):
    """Where a version of the learned corrections stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SERVING = "serving"
    """The one that answers use."""
    ARCHIVED = "archived"
    """It served before; it can be promoted again."""
    KEPT = "kept"
    """Trained, but the gate refused it."""
    FAILED = "failed"


class ModelTrigger(StrEnum):
    """What asked for a training."""

    FIRST_START = "first_start"
    SCHEDULE = "schedule"
    NEW_RUNS = "new_runs"
    REQUEST = "request"
    COMMAND = "command"


def _listed(values: type[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _unique_where(name: str, column: str, condition: str) -> Index:
    """A unique index over the rows that meet a condition."""
    return Index(name, column, unique=True, sqlite_where=text(condition), postgresql_where=text(condition))


_STATUS_LIST = _listed(Status)


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
    memory_model_version: Mapped[int | None]
    """What was learned when a worker first claimed it: a search that is resumed goes on with the same. Null: the
    formulas alone, or not claimed yet. No foreign key: it outlives the version."""

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

    __tablename__ = "search_trials"

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[dict[str, Any]]


class MeasuredTrial(Base):
    """One trial of a measured search: a strategy that was given out to be run, and what its run gave."""

    __tablename__ = "measured_trials"
    # Two runners that ask at the same moment are given two strategies.
    __table_args__ = (UniqueConstraint("search_id", "candidate"),)

    search_id: Mapped[str] = mapped_column(ForeignKey("searches.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """As Optuna's study numbers it."""
    candidate: Mapped[int]
    """In the pool of the search's result."""
    estimate: Mapped[dict[str, Any]]
    """As it was answered."""
    asked_at: Mapped[datetime]
    lease_until: Mapped[datetime]
    """From then on it may be given to another runner."""
    times_asked: Mapped[int] = mapped_column(default=1)
    outcome: Mapped[dict[str, Any] | None]
    """As it was told; None: it was not yet."""
    told_at: Mapped[datetime | None]
    run_id: Mapped[str | None] = mapped_column(String(36))
    """The logged run. No foreign key: runs can be deleted."""


class Job(Base):
    """A piece of background work and the lease on it."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATUS_LIST})", name="state_known"),
        # Every worker runs the schedule; the first to insert a slot owns it.
        UniqueConstraint("schedule", "slot"),
        Index("ix_jobs_state_lease_until", "state", "lease_until"),
        Index("ix_jobs_search_id", "search_id"),
        Index("ix_jobs_memory_model_version", "memory_model_version"),
        # However many workers there are: one training at a time, and one more that waits.
        _unique_where("uq_jobs_retrain_queued", "kind", "kind = 'retrain' AND state = 'queued'"),
        _unique_where("uq_jobs_retrain_running", "kind", "kind = 'retrain' AND state = 'running'"),
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
    memory_model_version: Mapped[int | None] = mapped_column(ForeignKey("memory_models.version", ondelete="CASCADE"))


class MemoryModel(Base):
    """One version of what was learned from runs: who asked for it, what it was trained on, its report, the model."""

    __tablename__ = "memory_models"
    __table_args__ = (
        CheckConstraint(f"state IN ({_listed(ModelState)})", name="state_known"),
        CheckConstraint(f"trigger IN ({_listed(ModelTrigger)})", name="trigger_known"),
        _unique_where("uq_memory_models_serving", "state", "state = 'serving'"),
    )

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """1, 2, ...: the next one when a training is asked for."""
    state: Mapped[str] = mapped_column(String(16), default=ModelState.QUEUED)
    trigger: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    trained_at: Mapped[datetime | None]
    promoted_at: Mapped[datetime | None]
    runs: Mapped[int | None]
    """How many runs it was trained on, published and logged."""
    last_run_id: Mapped[str | None] = mapped_column(String(36))
    """The newest logged run among them. No foreign key: a run that is deleted does not change what was trained."""
    runs_sha256: Mapped[str | None] = mapped_column(String(64))
    schema: Mapped[str | None] = mapped_column(String(64))
    """Hash of the names, order and units of the features."""
    libraries: Mapped[dict[str, Any] | None]
    report: Mapped[dict[str, Any] | None]
    decision: Mapped[dict[str, Any] | None]
    blob: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)
    blob_sha256: Mapped[str | None] = mapped_column(String(64))
    error: Mapped[str | None] = mapped_column(Text)


class Run(Base):
    """One measured run, as it was logged; its other columns are what lists filter by."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("key"),
        Index("ix_runs_created_at_id", "created_at", "id"),
        Index("ix_runs_source_created_at_id", "source", "created_at", "id"),
        Index("ix_runs_framework_created_at_id", "framework", "created_at", "id"),
        Index("ix_runs_gpu_created_at_id", "gpu", "created_at", "id"),
        Index("ix_runs_cluster_created_at_id", "cluster", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    key: Mapped[str] = mapped_column(String(255))
    content_sha256: Mapped[str] = mapped_column(String(64))
    """Of the record without its key: the same key with other content is a conflict."""
    record: Mapped[dict[str, Any]]
    source: Mapped[str | None] = mapped_column(String(256))
    framework: Mapped[str] = mapped_column(String(32))
    gpu: Mapped[str] = mapped_column(String(256))
    cluster: Mapped[str] = mapped_column(String(512))
    """`cost_models.cluster.Cluster.identity`."""
    family: Mapped[str | None] = mapped_column(String(256))
    out_of_memory: Mapped[bool]
    started_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


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
