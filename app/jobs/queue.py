"""The queue: Huey over SQLite, PostgreSQL or Redis. It carries job ids, nothing else; it may lose or repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from huey import Huey, PostgresHuey, RedisHuey, SqliteHuey
from huey.registry import Message
from huey.serializer import Serializer
from sqlalchemy.engine import make_url

log = structlog.get_logger(__name__)

QUEUE_NAME = "paraplan"
TABLES_LOCK = 0x7061726170
"""Of PostgreSQL, held while the queue's tables are created: "parap" in ASCII."""


class JsonSerializer(Serializer):  # type: ignore[misc]  # huey is untyped
    """Messages as JSON: whoever can write to the queue must not be able to run code, as pickles would let them."""

    def _serialize(self, data: Message) -> bytes:
        return json.dumps(data).encode()

    def _deserialize(self, data: bytes) -> Message:
        return Message(*json.loads(bytes(data)))


class JobQueue:
    """A queue of job ids. Servers `wake` it; workers give `run`, which is called with each id."""

    def __init__(self, url: str, run: Callable[[str], None] | None = None) -> None:
        self.huey = _build_huey(url)
        self._run = run
        self._task = self.huey.task(name="run_job")(self._run_job)

    def wake(self, job_id: str) -> None:
        """Tell a worker that a job waits. The job is stored by now: if the queue is away, the sweep will find it."""
        try:
            self._task(job_id)
        except Exception:
            log.exception("wake_failed", job_id=job_id)

    def is_empty(self) -> bool:
        """Whether no message waits."""
        return self.huey.pending_count() == 0  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the connection to the queue's storage."""
        self.huey.storage.close()

    def _run_job(self, job_id: str) -> None:
        if self._run is None:
            raise RuntimeError("this process enqueues jobs but does not run them")
        self._run(job_id)


def _build_huey(url: str) -> Huey:
    parsed = make_url(url)
    options: dict[str, Any] = {"name": QUEUE_NAME, "results": False, "serializer": JsonSerializer()}
    match parsed.get_backend_name():
        case "sqlite":
            path = Path(str(parsed.database))
            path.parent.mkdir(parents=True, exist_ok=True)
            return SqliteHuey(filename=str(path), **options)
        case "postgresql":
            return _postgres_huey(parsed.set(drivername="postgresql").render_as_string(hide_password=False), options)
        case _:
            return RedisHuey(url=url, **options)


def _postgres_huey(dsn: str, options: dict[str, Any]) -> Huey:
    import psycopg  # an optional dependency, like the database itself

    with psycopg.connect(dsn) as connection:
        # Huey creates its tables "if not exists", which fails in all but one of the processes that do so at once.
        connection.execute("select pg_advisory_xact_lock(%s)", [TABLES_LOCK])
        return PostgresHuey(dsn=dsn, **options)
