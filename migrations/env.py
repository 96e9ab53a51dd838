"""How Alembic runs our migrations: on the connection it is given, else on the database of the settings."""

from typing import Literal

from alembic import context
from sqlalchemy import Connection

from app.db.base import Base, UtcDateTime
from app.db.migrate import VERSION_TABLE
from app.db.session import build_engine
from app.settings import Settings
from migrations.filters import include_name


def render_item(kind: str, item: object, _context: object) -> str | Literal[False]:
    """In migrations our timestamp is the column it makes: history must not depend on a class of today."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def run(connection: Connection) -> None:
    """Run the migrations that were asked for."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=include_name,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render_item,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with build_engine(Settings().database_url).connect() as own_connection:
        run(own_connection)
        own_connection.commit()
