"""Keys and rate limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from app.schemas.examples import SEARCH
from app.services.api_keys import create_key
from app.settings import Settings


class TestKeys:
    def test_none_is_needed_until_one_exists(self, client: TestClient, http_app: FastAPI) -> None:
        assert client.get("/v1/searches").status_code == 200
        key = create_key(http_app.state.database, "ci", ["read", "write"], None)
        answer = client.get("/v1/searches")
        assert (answer.status_code, answer.json()["type"]) == (401, "urn:paraplan:problem:unauthenticated")
        assert answer.headers["www-authenticate"] == "ApiKey"
        assert client.get("/v1/searches", headers={"X-API-Key": key}).status_code == 200

    @pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"])
    def test_operators_need_none(self, client: TestClient, http_app: FastAPI, path: str) -> None:
        create_key(http_app.state.database, "ci", ["read"], None)
        assert client.get(path).status_code == 200

    @pytest.mark.parametrize("presented", [b"pp_00000000_0", b"nonsense", b"pp_\xe9_\xff", b"pp__"])
    def test_wrong_keys(self, client: TestClient, presented: bytes) -> None:
        assert client.get("/v1/searches", headers={b"X-API-Key": presented}).status_code == 401

    def test_a_key_with_a_wrong_secret(self, client: TestClient, http_app: FastAPI) -> None:
        key = create_key(http_app.state.database, "ci", ["read"], None)
        other = key[:-1] + ("0" if key[-1] != "0" else "1")
        assert client.get("/v1/searches", headers={"X-API-Key": other}).status_code == 401

    def test_an_expired_key(self, client: TestClient, http_app: FastAPI) -> None:
        key = create_key(http_app.state.database, "ci", ["read"], timedelta(seconds=-1))
        assert client.get("/v1/searches", headers={"X-API-Key": key}).status_code == 401

    def test_a_scope_that_is_missing(self, client: TestClient, http_app: FastAPI) -> None:
        key = create_key(http_app.state.database, "reader", ["read"], None)
        answer = client.post("/v1/searches", json=SEARCH, headers={"X-API-Key": key})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:paraplan:problem:forbidden")

    def test_other_addresses_than_loopback_always_need_one(self, sqlite_url: str) -> None:
        settings = Settings(database_url=sqlite_url, host="0.0.0.0")
        with TestClient(create_app(settings)) as client:
            assert client.get("/v1/searches").status_code == 401


class TestRateLimit:
    @pytest.fixture
    def limited(self, sqlite_url: str) -> Iterator[TestClient]:
        with TestClient(create_app(Settings(database_url=sqlite_url, rate_limit="3/minute"))) as client:
            yield client

    def test_the_fourth_request_waits(self, limited: TestClient) -> None:
        answers = [limited.get("/v1/searches") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert answers[-1].json()["type"] == "urn:paraplan:problem:too-many-requests"
        assert limited.get("/healthz").status_code == 200

    def test_each_key_has_its_own(self, limited: TestClient, sqlite_url: str) -> None:
        database = limited.app.state.database  # type: ignore[attr-defined]
        keys = [create_key(database, name, ["read"], None) for name in ("a", "b")]
        for key in keys:
            assert [limited.get("/v1/searches", headers={"X-API-Key": key}).status_code for _ in range(3)] == [200] * 3
