"""Every setting of the service, read from the environment in one place (prefix `PARAPLAN_`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from app.cron import check_cron

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(BaseSettings):
    """The defaults run on one machine with nothing installed: SQLite files in `data/`, a worker beside the server."""

    model_config = SettingsConfigDict(env_prefix="PARAPLAN_", extra="ignore", frozen=True)

    database_url: str = Field(
        default="sqlite:///data/paraplan.db", description="`sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`."
    )
    database_connections: int = Field(
        default=15, ge=3, description="The most that one process opens to PostgreSQL; up to 5 of them stay open."
    )
    queue_url: str = Field(
        default="",
        description="`sqlite:///PATH`, `postgresql://…` or Redis (`redis://`, `rediss://`, `unix://`). "
        "Left out: PostgreSQL when the database is, else an SQLite file beside it.",
    )

    host: str = Field(default="127.0.0.1", description="The address `serve` listens on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port `serve` listens on.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    embedded_worker: bool = Field(default=True, description="Whether `serve` starts a worker process of its own.")
    lease_seconds: float = Field(default=10.0, gt=0, description="How long a silent worker keeps its job.")
    heartbeat_seconds: float = Field(
        default=0.5, gt=0, description="How often a worker renews its lease and looks for a cancellation."
    )
    max_attempts: int = Field(
        default=5, ge=1, description="How often a job is started without moving on before it is given up."
    )
    queue_poll_seconds: float = Field(
        default=0.05, gt=0, description="How often an idle worker looks into an SQLite queue."
    )
    retention_days: float = Field(default=90.0, gt=0, description="How long ended searches are kept.")
    purge_cron: str = Field(
        default="17 3 * * *", description="When old searches are purged: minute hour day month weekday, in UTC."
    )

    trial_lease_seconds: float = Field(
        default=4 * 3600.0,
        gt=0,
        description="How long the runner of a measured trial may take before another is given it.",
    )

    worker_trains: bool = Field(default=True, description="Whether workers train memory models, beside searches.")
    retrain_cron: str = Field(
        default="23 2 * * *", description="When a new memory model is trained, as `purge_cron`; empty: by no clock."
    )
    retrain_after_runs: int = Field(
        default=10, ge=0, description="How many new runs make for a training at once; 0: none do."
    )

    max_search_body_bytes: int = Field(default=2**20, gt=0)
    max_estimate_body_bytes: int = Field(default=32 * 2**20, gt=0)
    max_runs_body_bytes: int = Field(default=32 * 2**20, gt=0)
    max_upload_bytes: int = Field(default=512 * 2**20, gt=0, description="Of a file that is read as a stream.")
    rate_limit: str = Field(
        default="6000/minute",
        description="Requests a client may make, in the notation of `limits`; empty: as many as it likes.",
    )
    rate_limit_url: str = Field(default="memory://", description="Where the counters live: `memory://` or `redis://…`.")

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        return _with_psycopg(_checked(url, {"sqlite", "postgresql"}))

    @field_validator("queue_url")
    @classmethod
    def _known_queue(cls, url: str) -> str:
        return _checked(url, {"sqlite", "postgresql", "redis", "rediss", "unix"}) if url else url

    @field_validator("purge_cron")
    @classmethod
    def _cron(cls, cron: str) -> str:
        return check_cron(cron)

    @field_validator("retrain_cron")
    @classmethod
    def _cron_or_none(cls, cron: str) -> str:
        return check_cron(cron) if cron else cron

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> Settings:
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                "lease_seconds must be at least twice heartbeat_seconds, or healthy workers lose their jobs"
            )
        return self

    @property
    def effective_queue_url(self) -> str:
        """The queue's address: as given, else derived from the database's."""
        if self.queue_url:
            return self.queue_url
        url = make_url(self.database_url)
        if url.get_backend_name() == "postgresql":
            return self.database_url
        path = Path(url.database or "")
        return f"sqlite:///{path.with_name(f'{path.stem}-queue{path.suffix}')}"


def _checked(url: str, backends: set[str]) -> str:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("not a database address") from error
    backend = parsed.get_backend_name()
    if backend not in backends:
        raise ValueError(f"{backend!r} is not supported; one of {', '.join(sorted(backends))}")
    if backend == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise ValueError("an SQLite database must be a file: server and worker are two processes")
    return url


def _with_psycopg(url: str) -> str:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)
