"""`advice/micro-batch`: what to move to, and what is wrong with a request."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from jsonschema_rs import Draft202012Validator

from app.schemas.examples import MICRO_BATCH


def post(client: TestClient, **changes: Any) -> Any:
    return client.post("/v1/advice/micro-batch", json=MICRO_BATCH | changes)


def test_answers_as_described(client: TestClient, http_app: FastAPI) -> None:
    answer = post(client)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    schemas = http_app.openapi()["components"]["schemas"]
    reference = {"$ref": "#/components/schemas/MicroBatchAdvice", "components": {"schemas": schemas}}
    Draft202012Validator(reference).validate(body)
    assert body["estimate"]["strategy"] == body["strategy"]
    assert body["micro_batch_size"] == body["strategy"]["micro_batch_size"]
    assert body["estimate"]["fits"]
    assert body["throughput_gain"] > 0
    assert body["steps"][0]["from"] == "full"
    current = body["current"]["memory"]
    assert (current["peak_allocated_gib"], current["peak_gib"]) == pytest.approx((20.4, 26.5))
    parts = body["estimate"]["memory"]["breakdown_gib"]
    assert sum(parts.values()) == pytest.approx(body["estimate"]["memory"]["peak_gib"])
    assert "memory_confidence left out: 0.9" not in body["assumptions"]


def test_defaults_are_listed(client: TestClient) -> None:
    assert "memory_confidence left out: 0.9" in post(client, memory_confidence=None).json()["assumptions"]


@pytest.mark.parametrize(
    ("observed", "place", "code"),
    [
        ([], ["body", "observed"], "empty"),
        ([{"seconds": 1}], ["body", "observed"], "nothing_observed"),
        ([{"seconds": 1, "allocated_gib": 30, "reserved_gib": 20}], ["body", "observed", 0, "allocated_gib"], None),
        ([{"seconds": 1, "device_gib": 99}], ["body", "observed", 0, "device_gib"], "above_device_memory"),
        (
            [{"seconds": 2, "allocated_gib": 1}, {"seconds": 1, "allocated_gib": 1}],
            ["body", "observed", 1, "seconds"],
            "not_rising",
        ),
        ([{"seconds": 1, "allocated_gib": -1}], ["body", "observed", 0, "allocated_gib"], "greater_than_equal"),
        ([{"seconds": 1, "allocated_gib": "1"}], ["body", "observed", 0, "allocated_gib"], "float_type"),
        ([{"allocated_gib": 1}], ["body", "observed", 0, "seconds"], "missing"),
        ([{"seconds": 1, "used": 1}], ["body", "observed", 0, "used"], "extra_forbidden"),
    ],
)
def test_curves_that_cannot_be_are_refused(
    client: TestClient, observed: Any, place: list[Any], code: str | None
) -> None:
    answer = post(client, observed=observed)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    [error] = answer.json()["errors"]
    assert error["loc"] == place
    assert error["code"] == (code or "above_reserved")


def test_a_strategy_that_breaks_rules_is_refused_with_every_code(client: TestClient) -> None:
    answer = post(client, strategy={"framework": "fsdp2", "zero_stage": 1, "tensor_parallel_size": 3})
    assert answer.status_code == 422
    body = answer.json()
    assert body["type"] == "urn:paraplan:problem:invalid-strategy"
    codes = {error["code"] for error in body["errors"]}
    assert {"degrees_do_not_multiply_to_gpus", "heads_not_divisible", "zero_stage_unsupported"} <= codes
    assert all(error["loc"] == ["body", "strategy"] for error in body["errors"])
