"""The commands that end by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from app.db import migrate
from app.db.session import Database
from app.services.api_keys import authenticate


@pytest.fixture
def database_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "paraplan.db"
    monkeypatch.setenv("PARAPLAN_DATABASE_URL", f"sqlite:///{path}")
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_migrate_makes_the_database_and_may_be_repeated(database_path: Path) -> None:
    assert run("migrate").exit_code == 0
    assert run("migrate").exit_code == 0
    database = Database(f"sqlite:///{database_path}")
    assert migrate.is_current(database.engine)
    database.dispose()


def test_create_key_prints_a_key_that_opens(database_path: Path) -> None:
    run("migrate")
    result = run("create-key", "ci", "--scope", "read", "--days", "1")
    assert result.exit_code == 0
    database = Database(f"sqlite:///{database_path}")
    key = authenticate(database, result.stdout.strip())
    database.dispose()
    assert key is not None
    assert (key.name, key.scopes) == ("ci", ["read"])
    assert key.expires_at is not None


@pytest.mark.usefixtures("database_path")
def test_an_unknown_scope_is_refused() -> None:
    run("migrate")
    result = run("create-key", "ci", "--scope", "admin")
    assert result.exit_code == 1
    assert "Unknown scope admin" in result.stderr


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAPLAN_DATABASE_URL", "mysql://h/n")
    result = run("migrate")
    assert result.exit_code == 1
    assert "database_url" in result.stderr


@pytest.mark.usefixtures("database_path")
def test_openapi_is_printed() -> None:
    result = run("openapi")
    assert result.exit_code == 0
    assert "/v1/searches" in json.loads(result.stdout)["paths"]
