"""Optuna's storage in the service's own database, for studies that several processes work on."""

from __future__ import annotations

import threading
from typing import Any, Final

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from app.db.base import IDENTIFIER
from app.db.models import Search
from app.db.session import SQLITE_BUSY_MILLISECONDS, Database, postgresql_options

POSTGRESQL_LOCK: Final = 7_266_721_105
"""While the tables are made; any number that is not `migrate.POSTGRESQL_LOCK`."""
ATTEMPTS: Final = 5
"""At making the tables on SQLite, which has no lock but its own: of processes that begin together one goes first."""


class StudyStorage:
    """Opened when it is first asked for: Optuna then makes its tables, if they are not there.

    Optuna's tables live beside ours. Their `alembic_version` is not our `migrate.VERSION_TABLE`, and none of ours has a
    name of theirs.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._storage: RDBStorage | None = None

    def open(self) -> RDBStorage:
        """The storage, one for all threads."""
        with self._lock:
            if self._storage is None:
                self._storage = self._on_postgresql() if self._is_postgresql else self._on_sqlite()
            return self._storage

    def purge(self) -> int:
        """Delete the studies of searches that are gone; answers how many. Studies of others stay."""
        if not inspect(self._database.engine).has_table("studies"):
            return 0
        storage = self.open()
        named = [study for study in storage.get_all_studies() if IDENTIFIER.fullmatch(study.study_name)]
        names = [study.study_name for study in named]
        with self._database.read() as session:
            kept = set(session.scalars(select(Search.id).where(Search.id.in_(names))))
        gone = [study for study in named if study.study_name not in kept]
        for study in gone:
            storage.delete_study(study._study_id)
        return len(gone)

    def dispose(self) -> None:
        """Close the pooled connections."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()

    @property
    def _is_postgresql(self) -> bool:
        return self._database.engine.dialect.name == "postgresql"

    def _on_postgresql(self) -> RDBStorage:
        with self._database.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRESQL_LOCK})
            options = {"connect_args": postgresql_options(self._database.engine.url)}
            return self._storage_with({"pool_pre_ping": True, "pool_size": 1, "max_overflow": 4, **options})

    def _on_sqlite(self) -> RDBStorage:
        options = {"connect_args": {"timeout": SQLITE_BUSY_MILLISECONDS / 1000}}
        for _ in range(ATTEMPTS - 1):
            try:
                return self._storage_with(options)
            except (OperationalError, ProgrammingError, IntegrityError, StorageInternalError):
                continue
        return self._storage_with(options)

    def _storage_with(self, engine_options: dict[str, Any]) -> RDBStorage:
        url = self._database.engine.url.render_as_string(hide_password=False)
        return RDBStorage(url, engine_kwargs=engine_options)
