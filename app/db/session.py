"""Engines and units of work for SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

SQLITE_BUSY_MILLISECONDS = 10_000
DATABASE_AWAY = (OperationalError, InterfaceError)
"""What a database raises that cannot be reached or is busy; anything else it raises is a fault of what was written."""
CONNECTIONS = 15
"""The most that a process opens to PostgreSQL unless told otherwise; as SQLAlchemy's pool."""
KEPT_CONNECTIONS = 5
"""Those of them that stay open while they are idle."""
POSTGRESQL_OPTIONS: Final[Mapping[str, Any]] = {
    # A host that lost its power or its network sends no reset: without these a connection to it waits for hours.
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # Statements prepared on one server connection are unknown on the next that a pooler hands out.
    "prepare_threshold": None,
}
"""Of libpq (PostgreSQL manual, "Parameter Key Words") and psycopg; what the URL says goes first. They mean nothing on a
socket of the same host."""
IDLE_WRITER_SECONDS = 10
"""A writer that stops in the middle of a transaction, frozen or cut off, holds its rows' locks no longer than this."""
IDLE_WRITER_SQLSTATE = "25P03"
"""idle_in_transaction_session_timeout. Source: PostgreSQL manual, "PostgreSQL Error Codes"."""


class Database:
    """One database: sessions to read with, and units of work that commit as a whole or not at all."""

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        self.engine = build_engine(url, connections=connections)
        # A transaction that starts by reading and then writes cannot wait for SQLite's lock: its snapshot is stale, so
        # it fails at once. Units of work that write take the lock when they begin. PostgreSQL ignores the option.
        self._writing_engine = self.engine.execution_options(sqlite_begin="IMMEDIATE")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session whose changes are thrown away."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at the end, or rolled back if an exception leaves the block."""
        with Session(self._writing_engine, expire_on_commit=False) as session, session.begin():
            if self.engine.dialect.name == "postgresql":
                # By transaction, not by connection: a pooler may hand out another connection for each.
                session.execute(_LIMIT_IDLE_WRITER)
            yield session

    def dispose(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()


def postgresql_options(url: URL) -> dict[str, Any]:
    """What a connection is opened with beside its URL."""
    return {name: value for name, value in POSTGRESQL_OPTIONS.items() if name not in url.query}


def build_engine(url: str, *, connections: int = CONNECTIONS) -> Engine:
    """An engine with what each database needs to behave the same."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        kept = min(KEPT_CONNECTIONS, connections)
        engine = create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=kept,
            max_overflow=connections - kept,
            json_serializer=_json,
            connect_args=postgresql_options(parsed),
        )
        event.listen(engine, "handle_error", _cut_off, retval=True)
        return engine
    Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, json_serializer=_json)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


_LIMIT_IDLE_WRITER = text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_WRITER_SECONDS}s'")


def _cut_off(context: ExceptionContext) -> OperationalError | None:
    """A writer that thaws finds its connection closed, which the driver calls an internal error."""
    original = context.original_exception
    if getattr(original, "sqlstate", None) != IDLE_WRITER_SQLSTATE:
        return None
    context.is_disconnect = True
    return OperationalError(context.statement, context.parameters, original, connection_invalidated=True)


def _json(value: Any) -> str:
    # SQLite would store a NaN that no JSON reader accepts; PostgreSQL would refuse it. Both refuse it here.
    return json.dumps(value, allow_nan=False)


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    sqlite: Any = connection
    sqlite.isolation_level = None  # the driver would begin too late, at the first write; see _begin_sqlite
    for pragma in (
        f"busy_timeout = {SQLITE_BUSY_MILLISECONDS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
    ):
        sqlite.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'DEFERRED')}")
