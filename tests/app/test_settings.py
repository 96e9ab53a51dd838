"""Settings: defaults that run as they are, and refusals that say why."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.settings import Settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARAPLAN_DATABASE_URL", "PARAPLAN_QUEUE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("database", "queue", "expected"),
    [
        ("sqlite:///data/paraplan.db", "", "sqlite:///data/paraplan-queue.db"),
        ("sqlite:////var/lib/p.db", "", "sqlite:////var/lib/p-queue.db"),
        ("postgresql://u:s%40t@db/p", "", "postgresql+psycopg://u:s%40t@db/p"),
        ("postgresql://u@db/p", "redis://cache:6379/0", "redis://cache:6379/0"),
    ],
)
def test_the_queue_lies_beside_the_database_unless_told_otherwise(database: str, queue: str, expected: str) -> None:
    assert Settings(database_url=database, queue_url=queue).effective_queue_url == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "mysql://u@h/n"),
        ("database_url", "not an address"),
        ("database_url", "sqlite:///:memory:"),
        ("database_url", "sqlite://"),
        ("queue_url", "amqp://h"),
        ("lease_seconds", 0.9),
        ("purge_cron", "daily"),
        ("purge_cron", ""),
        ("retrain_cron", "61 * * * *"),
        ("retrain_after_runs", -1),
        ("port", 70_000),
    ],
)
def test_bad_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: value})


def test_no_clock_for_trainings() -> None:
    assert Settings(retrain_cron="").retrain_cron == ""


def test_the_environment_is_read_with_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAPLAN_EMBEDDED_WORKER", "false")
    monkeypatch.setenv("PARAPLAN_DATABASE_URL", "postgresql://u@db/p")
    settings = Settings()
    assert (settings.embedded_worker, settings.database_url) == (False, "postgresql+psycopg://u@db/p")
