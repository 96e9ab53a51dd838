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


class SchemaOutdated(Exception):
    """The database is not at the newest revision."""

    def __init__(self) -> None:
        super().__init__("The database does not have this version's schema. Run: python -m app migrate")


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Apply the migrations up to a revision, all or none; a second process that tries at the same time waits."""
    with _writing(engine) as connection, connection.begin():
        _lock(connection)
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Undo the migrations down to a revision."""
    with _writing(engine) as connection, connection.begin():
        _lock(connection)
        command.downgrade(_config(connection), revision)


def is_current(engine: Engine) -> bool:
    """Whether the database is at the newest revision."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision() == ScriptDirectory.from_config(_config(connection)).get_current_head()


def require_current(engine: Engine) -> None:
    """Raise SchemaOutdated unless the database is at the newest revision."""
    if not is_current(engine):
        raise SchemaOutdated


def _writing(engine: Engine) -> Connection:
    return engine.execution_options(sqlite_begin="IMMEDIATE").connect()


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRESQL_LOCK})


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
