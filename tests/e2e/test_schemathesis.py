"""Requests made up from the OpenAPI description: answered as described, never with a fault of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copy
from typing import Final

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from app.main import create_app
from app.services.api_keys import create_key
from app.settings import Settings

DESCRIPTION: Final = Path(__file__).parents[2] / "docs" / "openapi.json"
# A JSON Schema cannot say that degrees divide heads or that a preset exists: what it allows may still break a rule.
CONFIG: Final = """
seed = 20261201
[generation]
max-examples = 30
deterministic = true
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422"]
"""
EVENTS: Final = r"/v1/searches/\{id\}/events"
"""A stream; tested on its own."""


class Relay:
    """Stands for the service while tests are collected; there is none yet."""

    service: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.service(scope, receive, send)


relay = Relay()
schema = schemathesis.openapi.from_path(DESCRIPTION, config=SchemathesisConfig.from_str(CONFIG))
schema.app = relay


@pytest.fixture(scope="module")
def key(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a key, so that operations that ignore it are found."""
    path = copy(migrated_sqlite, tmp_path_factory.mktemp("schemathesis") / "paraplan.db")
    app = create_app(Settings(database_url=f"sqlite:///{path}", rate_limit=""))
    relay.service = app
    yield create_key(app.state.database, "schemathesis", ["read", "write"], None)
    app.state.database.dispose()


@schema.exclude(path_regex=EVENTS).parametrize()
def test_every_operation(case: schemathesis.Case, key: str) -> None:
    case.call_and_validate(headers={"X-API-Key": key})
