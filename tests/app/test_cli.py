"""The commands that end by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from app.db import migrate
from app.db.session import Database
from app.services.api_keys import authenticate
from tests.app.trainings import FakeTrain, model_of, states, training_jobs


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
    migrate.require_current(database.engine)
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


class TestRetrain:
    @pytest.fixture
    def database(self, database_path: Path) -> Iterator[Database]:
        run("migrate")
        database = Database(f"sqlite:///{database_path}")
        yield database
        database.dispose()

    @staticmethod
    def train_with(monkeypatch: pytest.MonkeyPatch, train: FakeTrain) -> None:
        monkeypatch.setattr("app.services.learner.train_on_runs", train)

    def test_the_report_and_the_decision_are_shown(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.train_with(monkeypatch, FakeTrain())
        result = run("retrain")
        assert result.exit_code == 0
        assert "538 runs: 214 peaks, 13 out of memory, 451 step times; 1 left out." in result.stdout
        assert "unknown GPU" in result.stdout
        assert "Peak memory, unseen sources" in result.stdout
        (row,) = {tuple(line.split()) for line in result.stdout.splitlines() if "megatron" in line}
        assert row == ("megatron", "30", "4.0", "%", "7.0", "%", "3.0", "%", "20.0", "%")
        assert "Version 1 serves now:\n  as told" in result.stdout
        assert model_of(database, 1).trigger == "command"
        assert states(database) == {1: "serving"}

    def test_what_the_gate_refuses_is_no_failure(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.train_with(monkeypatch, FakeTrain(promote=False))
        result = run("retrain")
        assert result.exit_code == 0
        assert "Version 1 is kept, but does not serve:" in result.stdout

    def test_a_failure_is(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: object) -> None:
            raise ValueError

        self.train_with(monkeypatch, FakeTrain(during=fail))
        result = run("retrain")
        assert result.exit_code == 1
        assert "Version 1 failed: An internal error ended the training: ValueError." in result.stderr
        assert states(database) == {1: "failed"}

    def test_beside_another_training_it_waits(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.train_with(monkeypatch, FakeTrain(during=lambda _: results.append(run("retrain"))))
        results: list[Result] = []
        assert run("retrain").exit_code == 0
        assert results[0].exit_code == 1
        assert "Version 1 is being trained; version 2 waits" in results[0].stderr
        assert states(database) == {1: "serving", 2: "queued"}

    def test_ctrl_c_leaves_it_to_the_workers(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        self.train_with(monkeypatch, FakeTrain(during=interrupt))
        result = run("retrain")
        assert result.exit_code == 1
        assert "left to the workers" in result.stderr
        assert [(job.state, job.owner) for job in training_jobs(database)] == [("running", None)]

    def test_it_needs_the_schema(self, database_path: Path) -> None:
        result = run("retrain")
        assert result.exit_code == 1
        assert "python -m app migrate" in result.stderr


@pytest.mark.usefixtures("database_path")
def test_openapi_is_printed() -> None:
    result = run("openapi")
    assert result.exit_code == 0
    assert "/v1/searches" in json.loads(result.stdout)["paths"]
