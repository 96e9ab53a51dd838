"""What every operation has in common when it refuses: methods, media types, body limits, a database that is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from app.main import create_app
from app.settings import Settings

JSON = {"Content-Type": "application/json"}
MIB = 2**20


class TestRouting:
    @pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/searches/", "/v1/runs/", "/static/nope"])
    def test_unknown_addresses(self, client: TestClient, path: str) -> None:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert answer.json() == {
            "type": "urn:paraplan:problem:not-found",
            "title": "There is nothing at this address",
            "status": 404,
            "detail": "There is nothing at this address",
            "instance": path,
        }

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("DELETE", "/v1/searches", "GET, POST"),
            ("PUT", "/v1/searches/x", "GET"),
            ("GET", "/v1/searches/x/cancel", "POST"),
            ("GET", "/v1/estimates", "POST"),
            ("POST", "/healthz", "GET"),
            ("OPTIONS", "/v1/searches", "GET, POST"),
        ],
    )
    def test_other_methods_name_all_that_are_allowed(
        self, client: TestClient, method: str, path: str, allowed: str
    ) -> None:
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json()["type"] == "urn:paraplan:problem:method-not-allowed"

    def test_unknown_query_parameters(self, client: TestClient) -> None:
        for path in ("/v1/catalog/models", "/healthz", "/readyz", "/metrics", "/v1/searches"):
            answer = client.get(path, params={"verbose": "1"})
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["loc"] == ["query", "verbose"]


class TestBodies:
    @pytest.mark.parametrize(
        "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
    )
    def test_other_media_types(self, client: TestClient, media_type: str) -> None:
        answer = client.post("/v1/models/inspect", content=b"{}", headers={"Content-Type": media_type})
        assert (answer.status_code, answer.json()["type"]) == (415, "urn:paraplan:problem:unsupported-media-type")

    @pytest.mark.parametrize(("path", "limit"), [("/v1/models/inspect", MIB), ("/v1/estimates", 32 * MIB)])
    @pytest.mark.parametrize("chunked", [False, True])
    def test_limits(self, client: TestClient, path: str, limit: int, chunked: bool) -> None:
        def post(size: int) -> int:
            body = b'"' + b"x" * (size - 2) + b'"'
            chunks = (body[begin : begin + MIB] for begin in range(0, size, MIB))
            return client.post(path, content=chunks if chunked else body, headers=JSON).status_code

        assert post(limit) == 422
        assert post(limit + 1) == 413

    def test_too_large_is_a_problem(self, client: TestClient) -> None:
        answer = client.post("/v1/searches", content=b" " * (MIB + 1), headers=JSON)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "the body must not exceed 1048576 bytes"


class TestFaults:
    @pytest.fixture
    def broken(self, http_app: FastAPI) -> Iterator[TestClient]:
        @http_app.get("/broken")
        def broken() -> None:
            raise RuntimeError("secret internals")

        with TestClient(http_app) as client:
            yield client

    def test_are_logged_and_answered_without_internals(self, broken: TestClient) -> None:
        with capture_logs() as logs:
            answer = broken.get("/broken")
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:paraplan:problem:internal-error")
        assert "secret" not in answer.text
        assert [line["event"] for line in logs] == ["request_failed", "request"]

    def test_a_database_that_is_away(self, tmp_path: Path) -> None:
        settings = Settings(database_url=f"sqlite:///{tmp_path / 'never-migrated.db'}", rate_limit="")
        with TestClient(create_app(settings)) as client:
            for path in ("/v1/searches", "/v1/catalog/gpus"):
                answer = client.get(path)
                assert (answer.status_code, answer.json()["type"]) == (503, "urn:paraplan:problem:database-unavailable")
                assert int(answer.headers["retry-after"]) > 0
                assert "api_keys" not in answer.text


class TestObservation:
    def test_requests_carry_an_id(self, client: TestClient) -> None:
        assert client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
        made = client.get("/healthz", headers={"X-Request-ID": "odd id"}).headers["x-request-id"]
        assert made != "odd id"
        assert len(made) == 36

    def test_requests_are_logged(self, client: TestClient) -> None:
        with capture_logs() as logs:
            client.get("/nope")
        assert [(line["event"], line["path"], line["status"]) for line in logs] == [("request", "/nope", 404)]
