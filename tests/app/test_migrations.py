"""The migrations make the schema that the code describes, on both databases, and can be undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

from app.db import migrate
from app.db.base import Base, utc_now
from app.db.models import Job, Search
from app.db.session import Database
from migrations.filters import include_name

OpenDatabase = Callable[[str], Database]


def differences(database: Database) -> list[object]:
    with database.engine.connect() as connection:
        options = {"version_table": migrate.VERSION_TABLE, "include_name": include_name}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata))


def test_migrated_schema_is_the_described_one(database: Database) -> None:
    assert differences(database) == []


def test_differences_would_be_found(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN forgotten INTEGER"))
    assert len(differences(database)) == 1


def test_every_check_and_foreign_key_is_there(database: Database) -> None:
    # Alembic compares neither checks nor, on SQLite, what happens on delete.
    inspector = inspect(database.engine)
    for table in Base.metadata.tables.values():
        described = {str(constraint.name) for constraint in table.constraints}
        found = {constraint["name"] for constraint in inspector.get_check_constraints(table.name)}
        found |= {constraint["name"] for constraint in inspector.get_unique_constraints(table.name)}
        found |= {constraint["name"] for constraint in inspector.get_foreign_keys(table.name)}
        found.add(inspector.get_pk_constraint(table.name)["name"])
        assert described == found
        assert all(key["options"] == {"ondelete": "CASCADE"} for key in inspector.get_foreign_keys(table.name))


def test_up_and_down_and_up_again(empty_database_url: str, open_database: OpenDatabase) -> None:
    database = open_database(empty_database_url)
    with pytest.raises(migrate.SchemaOutdated):
        migrate.require_current(database.engine)
    migrate.upgrade(database.engine)
    migrate.require_current(database.engine)
    migrate.downgrade(database.engine, "base")
    assert inspect(database.engine).get_table_names() == [migrate.VERSION_TABLE]
    migrate.upgrade(database.engine)
    assert differences(database) == []


def test_what_a_database_holds_outlives_its_new_tables(database: Database) -> None:
    with database.write() as session:
        search = Search(created_at=utc_now(), request={}, request_sha256="0" * 64)
        session.add(search)
        session.flush()
        kept = Job(kind="search", search_id=search.id, max_attempts=3, created_at=utc_now(), schedule="s", slot="1")
        session.add_all([kept, Job(kind="retrain", max_attempts=3, created_at=utc_now())])
    migrate.downgrade(database.engine, "0001")
    migrate.upgrade(database.engine)
    assert differences(database) == []
    with database.read() as session:
        (job,) = session.scalars(select(Job))
        assert (job.id, job.search_id, job.slot, job.memory_model_version) == (kept.id, search.id, "1", None)


def test_upgrade_of_a_current_database_changes_nothing(database: Database) -> None:
    migrate.upgrade(database.engine)
    migrate.require_current(database.engine)


def test_a_newer_schema_is_left_alone(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'"))
    for act in (migrate.require_current, migrate.upgrade):
        with pytest.raises(migrate.SchemaNewer, match=r"newer version \(revision 9999\)\. Update this host"):
            act(database.engine)


def test_tables_of_others_do_not_matter(empty_database_url: str, open_database: OpenDatabase) -> None:
    # Optuna's storage brings its own Alembic table with a revision that we do not know.
    database = open_database(empty_database_url)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('v3.2.0.a')"))
    migrate.upgrade(database.engine)
    migrate.require_current(database.engine)
    assert differences(database) == []
