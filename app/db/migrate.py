"""Bringing a database to the schema that this version of the service expects."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import Engine

# Not Alembic's default name: Optuna migrates its own storage with Alembic too, and may share the database.
VERSION_TABLE = "schema_version"
# Any number will do, as long as every server that may migrate at the same moment uses the same one.
POSTGRESQL_LOCK = 7_266_721_104


class SchemaMismatch(Exception):
    """The database is not at the revision of this version of the service; the message says what to do.

    SchemaMismatch
    ├── SchemaOutdated   the database is to be migrated
    └── SchemaNewer      a newer version of the service has migrated it
    """


class SchemaOutdated(SchemaMismatch):
    """The database is not at the newest revision."""

    def __init__(self) -> None:
        super().__init__("The database does not have this version's schema. Run: python -m app migrate")


class SchemaNewer(SchemaMismatch):
    """The database is at a revision that this version does not know."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The database has the schema of a newer version (revision {revision}). Update this host's service, as "
            "the one that migrated it."
        )


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Apply the migrations up to a revision, all or none; a second process that tries at the same time waits.

    Raises SchemaNewer.
    """
    with _writing(engine) as connection, connection.begin():
        _lock(connection)
        _refuse_newer(connection)
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Undo the migrations down to a revision."""
    with _writing(engine) as connection, connection.begin():
        _lock(connection)
        command.downgrade(_config(connection), revision)


def require_current(engine: Engine) -> None:
    """Raise SchemaMismatch unless the database is at the newest revision."""
    with engine.connect() as connection:
        _refuse_newer(connection)
        if _revision(connection) != ScriptDirectory.from_config(_config(connection)).get_current_head():
            raise SchemaOutdated


def _writing(engine: Engine) -> Connection:
    return engine.execution_options(sqlite_begin="IMMEDIATE").connect()


def _refuse_newer(connection: Connection) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config(connection)).walk_revisions()}
    found = _revision(connection)
    if found is not None and found not in known:
        raise SchemaNewer(found)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRESQL_LOCK})


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
