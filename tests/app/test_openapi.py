"""The description of the API: current, complete, and with examples that succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


def operations(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(method, path): item for path, items in schema["paths"].items() for method, item in items.items()}


def test_the_committed_description_is_current(http_app: FastAPI) -> None:
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(http_app.openapi())), "run `python -m app openapi > docs/openapi.json`"


def test_every_operation_is_described(http_app: FastAPI) -> None:
    for where, operation in operations(http_app.openapi()).items():
        assert operation["summary"], where
        assert operation["description"], where
        assert len(operation["tags"]) == 1, where
        assert "422" in operation["responses"], where
        for status, response in operation["responses"].items():
            if status.startswith(("4", "5")):
                assert list(response["content"]) == ["application/problem+json"], where


def test_every_field_of_a_request_is_described(http_app: FastAPI) -> None:
    schemas = http_app.openapi()["components"]["schemas"]
    requests = [name for name, schema in schemas.items() if schema.get("additionalProperties") is False]
    assert {"SearchRequest", "EstimateRequest", "InspectRequest", "Strategy", "StrategySpace"} <= set(requests)
    bare = [
        (name, field)
        for name in requests
        for field, schema in schemas[name]["properties"].items()
        if "description" not in schema
    ]
    assert bare == []


@pytest.mark.parametrize(
    "path", ["/v1/searches", "/v1/estimates", "/v1/strategies/parse", "/v1/models/inspect", "/v1/advice/micro-batch"]
)
def test_examples_succeed_as_they_stand(client: TestClient, http_app: FastAPI, path: str) -> None:
    schema = http_app.openapi()
    body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    for example in schema["components"]["schemas"][body.rpartition("/")[2]]["examples"]:
        assert client.post(path, json=example).status_code in (200, 202)


def test_docs_need_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert "http" not in page.text
    for asset in ("docs.js", "swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css", "swagger-ui/LICENSE"):
        assert client.get(f"/static/{asset}").status_code == 200
