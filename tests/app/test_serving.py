"""What keeps a service from starting, and says so."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

from app.db.migrate import SchemaOutdated
from app.db.session import Database
from app.services.api_keys import create_key
from app.serving import CannotServe, serve, serving
from app.settings import Settings
from tests.app.learned_versions import store_version, version_of
from tests.integration.workers import wait_for


def settings_for(url: str, **given: object) -> Settings:
    return Settings(**{"database_url": url, "port": 0, "embedded_worker": False, **given})


def test_a_busy_port_is_named(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=rf"^Cannot listen on 127\.0\.0\.1:{port}: Address already in use\. "):
            serve(settings_for(sqlite_url, port=port))


def test_a_database_without_the_schema_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaOutdated, match="python -m app migrate"):
        serve(settings_for(f"sqlite:///{tmp_path / 'empty.db'}"))


def test_the_network_is_refused_until_a_key_exists(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url, host="0.0.0.0")
    with pytest.raises(CannotServe, match="create-key"):
        serve(settings)
    database = Database(sqlite_url)
    create_key(database, "ci", ["read"], None)
    database.dispose()
    with serving(settings) as address:
        assert httpx2.get(f"{address}/healthz", trust_env=False).status_code == 200


def test_the_loopback_needs_no_key(sqlite_url: str) -> None:
    with serving(settings_for(sqlite_url)) as address:
        assert httpx2.get(f"{address}/v1/searches", trust_env=False).json() == {"items": [], "next_cursor": None}


def test_the_model_that_serves_is_loaded_before_anyone_asks(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    store_version(database, 1, version_of())
    database.dispose()
    with capture_logs() as logs, serving(settings_for(sqlite_url)):
        wait_for(lambda: any(entry["event"] == "memory_model_loaded" for entry in logs))
