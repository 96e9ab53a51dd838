"""Fixtures of tests that run a service on several hosts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from app.db import migrate
from app.db.session import Database, build_engine
from app.services.api_keys import create_key
from tests.integration.machines import Fleet, Services, start_services

MIGRATED = "migrated"


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    for services in start_services():
        engine = build_engine(services.postgres.create(MIGRATED))
        migrate.upgrade(engine)
        engine.dispose()
        yield services


@contextmanager
def fleet_on(services: Services, queue_kind: str, directory: Path) -> Iterator[Fleet]:
    """A service with a database of its own, of which nothing runs yet; workers do not train unless they are told to."""
    name = f"fleet-{uuid.uuid4()}"
    services.postgres.create(name, template=MIGRATED)
    url = services.database_url(name)
    redis.Redis.from_url(services.redis.url).flushall()
    environment = {
        "PARAPLAN_DATABASE_URL": url,
        "PARAPLAN_QUEUE_URL": services.redis.url if queue_kind == "redis" else url,
        "PARAPLAN_LEASE_SECONDS": "2.0",
        "PARAPLAN_HEARTBEAT_SECONDS": "0.2",
        "PARAPLAN_WORKER_TRAINS": "false",
        "PARAPLAN_LOG_FORMAT": "json",
    }
    database = Database(url)
    fleet = Fleet(directory, environment, database, create_key(database, "test", ["read", "write"], None))
    yield fleet
    fleet.stop()
    database.dispose()
    services.postgres.drop(name)


@pytest.fixture(params=["redis", "postgresql"])
def queue_kind(request: pytest.FixtureRequest) -> str:
    """What carries the messages; PostgreSQL is the database in either case."""
    kind: str = request.param
    return kind


@pytest.fixture
def fleet(services: Services, queue_kind: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(services, queue_kind, tmp_path) as fleet:
        yield fleet
