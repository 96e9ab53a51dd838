"""Engines and units of work for SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

SQLITE_BUSY_MILLISECONDS = 10_000
DATABASE_AWAY = (OperationalError, InterfaceError)
"""What a database raises that cannot be reached or is busy; anything else it raises is a fault of what was written."""


class Database:
    """One database: sessions to read with, and units of work that commit as a whole or not at all."""

    def __init__(self, url: str) -> None:
        self.engine = build_engine(url)
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
            yield session

    def dispose(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()


def build_engine(url: str) -> Engine:
    """An engine with what each database needs to behave the same."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, json_serializer=_json)
    Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, json_serializer=_json)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


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
