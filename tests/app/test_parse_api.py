"""`POST strategies/parse`."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from app.schemas.examples import PARSE_DEEPSPEED, PARSE_MEGATRON
from app.schemas.parsing import Format
from search.launch.parsers import PARSERS
from tests.app.test_launch_api import SMALL
from tests.http_service import Work

URL = "/v1/strategies/parse"
CLUSTER = {"preset": "dgx-h100", "nodes": 8}


def test_every_format_of_the_contract_is_read() -> None:
    assert set(get_args(Format)) == set(PARSERS)


def parse(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post(URL, json=body)
    assert answer.status_code == 422, answer.text
    (found,) = answer.json()["errors"]
    return dict(found)


def test_megatron_s_arguments_can_be_priced_as_they_are(client: TestClient) -> None:
    found = parse(client, **PARSE_MEGATRON)
    assert found["unmapped"] == []
    assert found["strategy"]["virtual_pipeline_size"] == 4
    assert found["strategy"]["data_parallel_size"] == 2
    request = {
        "model": found["model"],
        "cluster": CLUSTER,
        "workload": found["workload"],
        "strategies": [found["strategy"]],
    }
    answer = client.post("/v1/estimates", json=request)
    assert answer.status_code == 200, answer.text
    (estimate,) = answer.json()["estimates"]
    assert estimate["valid"]
    assert estimate["strategy"] == found["strategy"]


def test_what_is_launched_reads_back_as_the_plan(client: TestClient, work: Work) -> None:
    search_id = client.post("/v1/searches", json=SMALL).json()["id"]
    work()
    for plan in client.get(f"/v1/searches/{search_id}").json()["result"]["plans"]:
        files = client.get(f"/v1/searches/{search_id}/plans/{plan['rank']}/launch").json()["files"]
        found = parse(client, format="megatron-lm", content=files[0]["content"])
        assert found["strategy"] == plan["strategy"]
        assert found["unmapped"] == []


def test_the_cluster_tells_the_data_parallel_size(client: TestClient) -> None:
    text = "--tensor-model-parallel-size 4 --bf16"
    assert "data_parallel_size" not in parse(client, format="megatron-lm", content=text)["strategy"]
    assert parse(client, format="megatron-lm", content=text, cluster=CLUSTER)["strategy"]["data_parallel_size"] == 16
    assert parse(client, **PARSE_DEEPSPEED)["strategy"]["data_parallel_size"] == 8


def test_degrees_that_are_not_the_cluster_s(client: TestClient) -> None:
    for text in ("--tensor-model-parallel-size 3", "torchrun --nnodes 1 --nproc-per-node 8 p.py --bf16"):
        found = error(client, format="megatron-lm", content=text, cluster=CLUSTER)
        assert found["loc"] == ["body", "cluster"]
        assert found["code"] == "degrees_do_not_multiply_to_gpus"


def test_what_the_framework_refuses_is_named(client: TestClient) -> None:
    found = error(client, format="megatron-lm", content="--micro-batch-size none")
    assert found["loc"] == ["body", "content", "--micro-batch-size"]
    assert found["code"] == "not_a_size"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"format": "megatron-lm"},
        {"format": "megatron-lm", "content": ""},
        {"format": "nanotron", "content": "a: 1"},
        {"format": "megatron-lm", "content": "a\0b"},
        {"format": "megatron-lm", "content": "--bf16", "cluster": {"preset": "none", "nodes": 1}},
        {"format": "megatron-lm", "content": "--bf16", "verbose": True},
        {"format": "megatron-lm", "content": 7},
    ],
)
def test_bad_bodies(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post(URL, json=body).status_code == 422
