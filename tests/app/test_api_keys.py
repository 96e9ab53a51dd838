"""API keys: what is stored, and who is let in."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from app.db.models import ApiKey
from app.db.session import Database
from app.services.api_keys import any_key, authenticate, create_key


def test_a_key_is_known_again_and_its_secret_is_not_stored(database: Database) -> None:
    assert not any_key(database)
    key = create_key(database, "ci", ["read"], None)
    assert any_key(database)
    found = authenticate(database, key)
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ["read"])
    with database.read() as session:
        stored = session.scalars(select(ApiKey)).one()
    assert key.split("_")[2] not in str(vars(stored))


@pytest.mark.parametrize(
    "presented", ["", "pp", "pp_", "pp_x_y", "other_{prefix}_{secret}", "pp_{prefix}_", "pp_{prefix}_é"]
)
def test_others_are_not_let_in(database: Database, presented: str) -> None:
    _, prefix, secret = create_key(database, "ci", ["read"], None).split("_")
    assert authenticate(database, presented.format(prefix=prefix, secret=secret)) is None


def test_an_expired_key_is_not_let_in(database: Database) -> None:
    assert authenticate(database, create_key(database, "ci", ["read"], timedelta(seconds=-1))) is None
    assert authenticate(database, create_key(database, "ci", ["read"], timedelta(hours=1))) is not None
