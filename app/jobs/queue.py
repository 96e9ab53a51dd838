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
from sqlalchemy.engine import URL, make_url

from app.db.session import postgresql_options

log = structlog.get_logger(__name__)

QUEUE_NAME = "paraplan"
AWAY_SECONDS = 2.0
"""How long a worker waits at most before it asks a queue again that was away."""
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

    def waiting(self) -> int:
        """How many messages wait."""
        return self.huey.pending_count()  # type: ignore[no-any-return]

    def delays(self, poll_seconds: float) -> dict[str, float]:
        """How a consumer waits. An SQLite queue is polled; the others tell of messages, and it waits only after an
        error, longer each time: until a server is back, not in a loop that fills the log."""
        if self.huey.storage.blocking:
            return {"initial_delay": poll_seconds, "max_delay": AWAY_SECONDS, "backoff": 2.0}
        return {"initial_delay": poll_seconds, "max_delay": poll_seconds, "backoff": 1.0}

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
            return _postgres_huey(parsed, options)
        case _:
            return RedisHuey(url=url, **options)


def _postgres_huey(url: URL, options: dict[str, Any]) -> Huey:
    import psycopg  # an optional dependency, like the database itself

    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    connecting = postgresql_options(url)
    with psycopg.connect(dsn, **connecting) as connection:
        # Huey creates its tables "if not exists", which fails in all but one of the processes that do so at once.
        connection.execute("select pg_advisory_xact_lock(%s)", [TABLES_LOCK])
        return PostgresHuey(dsn=dsn, **connecting, **options)
