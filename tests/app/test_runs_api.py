"""`runs` over HTTP: one or many, all or none, once a key; every bad one named; lists, filters, pages, deletion."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from jsonschema_rs import Draft202012Validator

from app.main import create_app
from app.schemas.examples import HF_MODEL, RUN, RUN_OUT_OF_MEMORY
from app.settings import Settings

UNKNOWN = "01900000-0000-7000-8000-000000000000"
NAMED = RUN | {"cluster": RUN["cluster"] | {"name": "prod-a"}, "source": None}

Place = tuple[str | int, ...]


@pytest.fixture
def both(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """A client over each database."""
    settings = Settings(database_url=database_url, queue_url=f"sqlite:///{tmp_path / 'queue.db'}", rate_limit="")
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture(scope="module")
def refusing(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client for all tests in which nothing is ever logged."""
    path = shutil.copy(migrated_sqlite, tmp_path_factory.mktemp("refused-runs") / "paraplan.db")
    with TestClient(create_app(Settings(database_url=f"sqlite:///{path}", rate_limit=""))) as client:
        yield client


def log(client: TestClient, body: Any) -> list[str]:
    answer = client.post("/v1/runs", json=body)
    assert answer.status_code == 201, answer.text
    assert list(answer.json()) == ["ids"]
    ids: list[str] = answer.json()["ids"]
    return ids


def places(client: TestClient, body: Any, status: int = 422) -> list[tuple[Place, str]]:
    """Places and codes of the errors that a body is refused with; nothing is logged."""
    before = listed(client)
    # Not `json=`: the client itself refuses half a surrogate pair, and sends nothing for null.
    answer = client.post("/v1/runs", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert listed(client) == before
    return [(tuple(error["loc"][1:]), error["code"]) for error in answer.json()["errors"]]


def listed(client: TestClient, **query: Any) -> list[str]:
    """Ids, newest first, over as many pages as there are."""
    ids: list[str] = []
    while True:
        answer = client.get("/v1/runs", params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= query.get("limit", 20)
        ids += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            return ids
        query["cursor"] = page["next_cursor"]


def changed(record: dict[str, Any], path: Place, value: Any) -> dict[str, Any]:
    """The record with one field changed, or left out (None)."""
    copy: Any = deepcopy(record)
    at = copy
    for part in path[:-1]:
        at = at[part]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    result: dict[str, Any] = copy
    return result


def keyed(*keys: str, **changes: Any) -> list[dict[str, Any]]:
    return [RUN | {"key": key} | changes for key in keys]


class TestLog:
    def test_a_run_comes_back_as_it_was_logged(self, both: TestClient) -> None:
        (run_id,) = log(both, RUN)
        run = both.get(f"/v1/runs/{run_id}").json()
        figures = dict.fromkeys(
            ("peak_allocated_gib", "peak_device_gib", "pipeline_stage", "step_seconds", "out_of_memory")
        )
        assert run == RUN | {
            "id": run_id,
            "created_at": run["created_at"],
            "key": run["key"],
            "measured": figures | RUN["measured"],
            "unknown": None,
            "started_at": None,
        }
        assert both.get("/v1/runs").json() == {"items": [run], "next_cursor": None}

    def test_nulls_of_a_model_config_are_kept_and_those_of_our_fields_are_left_out(self, both: TestClient) -> None:
        (run_id,) = log(both, RUN | {"model": HF_MODEL | {"preset": None}})
        assert both.get(f"/v1/runs/{run_id}").json()["model"] == HF_MODEL

    def test_moments_are_kept_in_utc(self, both: TestClient) -> None:
        (run_id,) = log(both, RUN | {"started_at": "2026-11-30T14:30:00+02:00"})
        assert both.get(f"/v1/runs/{run_id}").json()["started_at"] == "2026-11-30T12:30:00Z"

    def test_the_answers_are_as_described(self, client: TestClient, http_app: FastAPI) -> None:
        log(client, [RUN, RUN_OUT_OF_MEMORY, RUN | {"model": HF_MODEL, "started_at": "2026-11-30T12:30:00Z"}])
        description = http_app.openapi()
        page = {"$ref": "#/components/schemas/LoggedRunPage", "components": description["components"]}
        Draft202012Validator(page).validate(client.get("/v1/runs").json())

    @pytest.mark.parametrize("body", [RUN, [RUN, RUN_OUT_OF_MEMORY]], ids=["one", "many"])
    def test_every_example_succeeds(self, client: TestClient, http_app: FastAPI, body: Any) -> None:
        media = http_app.openapi()["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]
        assert body in [example["value"] for example in media["examples"].values()]
        log(client, body)

    def test_a_run_that_breaks_a_rule_of_ours_is_a_fact(self, client: TestClient) -> None:
        strategy = RUN["strategy"] | {"tensor_parallel_size": 3, "expert_parallel_size": 7, "layers_per_stage": [1]}
        log(client, RUN | {"strategy": strategy})

    def test_a_run_may_be_out_of_memory_and_have_figures(self, client: TestClient) -> None:
        log(client, RUN | {"measured": {"out_of_memory": True, "peak_reserved_gib": 70.5}})

    def test_units_that_sources_mix_up_by_seven_percent_are_taken(self, client: TestClient) -> None:
        log(client, RUN | {"measured": {"peak_device_gib": 85.0}})


class TestKeys:
    def test_the_same_run_is_logged_once(self, both: TestClient) -> None:
        first = log(both, RUN)
        assert log(both, RUN) == first
        assert log(both, [RUN_OUT_OF_MEMORY, RUN])[1:] == first
        assert log(both, RUN | {"software": dict(reversed(RUN["software"].items()))}) == first
        assert log(both, RUN | {"unknown": None}) == first
        assert len(listed(both)) == 2

    def test_a_number_is_the_same_with_and_without_a_point(self, client: TestClient) -> None:
        whole, decimal = (RUN | {"measured": {"step_seconds": value}} for value in (3, 3.0))
        assert log(client, whole) == log(client, decimal)

    def test_a_key_left_out_is_a_hash_of_the_content(self, client: TestClient) -> None:
        ids = log(client, [RUN, RUN | {"model_name": "another"}])
        keys = [client.get(f"/v1/runs/{run_id}").json()["key"] for run_id in ids]
        assert keys[0] != keys[1]
        assert all(len(key) == 64 and int(key, 16) for key in keys)
        assert log(client, RUN | {"key": keys[0]}) == ids[:1]

    def test_the_same_content_under_another_key_is_another_run(self, client: TestClient) -> None:
        assert len(set(log(client, keyed("a", "b", "a")))) == 2

    def test_other_content_under_a_key_is_a_conflict(self, both: TestClient) -> None:
        log(both, keyed("a", "b", "c"))
        other = keyed("a", "new", "c", model_name="another")
        assert places(both, other, 409) == [((0, "key"), "key_conflict"), ((2, "key"), "key_conflict")]
        assert places(both, other[0], 409) == [(("key",), "key_conflict")]
        answer = both.post("/v1/runs", json=other).json()
        assert answer["type"] == "urn:paraplan:problem:key-conflict"
        assert [error["message"] for error in answer["errors"]] == [
            "the key 'a' belongs to a run with other content",
            "the key 'c' belongs to a run with other content",
        ]

    def test_other_content_under_a_key_of_the_same_call_is_a_conflict(self, client: TestClient) -> None:
        body = [*keyed("a", "b"), *keyed("b", "a", model_name="another"), *keyed("a")]
        assert places(client, body, 409) == [((2, "key"), "key_conflict"), ((3, "key"), "key_conflict")]

    def test_a_key_is_free_again_when_its_run_is_deleted(self, both: TestClient) -> None:
        (run_id,) = log(both, keyed("a"))
        assert both.delete(f"/v1/runs/{run_id}").status_code == 204
        assert log(both, keyed("a", model_name="another")) != [run_id]


SPEC = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}
BAD: list[tuple[Place, Any, Place, str]] = [
    (("model",), None, ("model",), "missing"),
    (("workload",), None, ("workload",), "missing"),
    (("measured",), None, ("measured",), "missing"),
    (("strategy", "framework"), None, ("strategy", "framework"), "missing"),
    (("note",), "x", ("note",), "extra_forbidden"),
    (("strategy", "depth"), 1, ("strategy", "depth"), "extra_forbidden"),
    (("measured",), {}, ("measured",), "nothing_measured"),
    (("measured",), {"out_of_memory": False, "pipeline_stage": 0}, ("measured",), "nothing_measured"),
    (("measured", "peak_gib"), 40, ("measured", "peak_gib"), "extra_forbidden"),
    (("measured", "step_seconds"), 0, ("measured", "step_seconds"), "greater_than"),
    (("measured", "step_seconds"), -1.5, ("measured", "step_seconds"), "greater_than"),
    (("measured", "step_seconds"), "3", ("measured", "step_seconds"), "float_type"),
    (("measured", "peak_reserved_gib"), 48793, ("measured", "peak_reserved_gib"), "too_large"),
    (("measured", "peak_allocated_gib"), 48.2, ("measured", "peak_allocated_gib"), "too_large"),
    (("measured", "pipeline_stage"), 1, ("measured", "pipeline_stage"), "too_large"),
    (("measured", "pipeline_stage"), -1, ("measured", "pipeline_stage"), "greater_than_equal"),
    (("measured", "out_of_memory"), "yes", ("measured", "out_of_memory"), "bool_type"),
    (("unknown",), ["zero_stage", "weather"], ("unknown", 1), "unknown_field"),
    (("key",), "", ("key",), "string_too_short"),
    (("key",), "k" * 256, ("key",), "string_too_long"),
    (("key",), "a\0b", ("key",), "string_unicode"),
    (("source",), "\ud800", ("source",), "string_unicode"),
    (("software",), {"cuda": "\0"}, ("software",), "string_unicode"),
    (("started_at",), "2026-11-30T12:00:00", ("started_at",), "timezone_aware"),
    (("started_at",), "yesterday", ("started_at",), "datetime_from_date_parsing"),
    (("started_at",), 1764504000, ("started_at",), "datetime_type"),
    (("started_at",), "0001-01-01T00:00:00+23:00", ("started_at",), "out_of_range"),
    (("started_at",), "9999-12-31T23:59:59-23:00", ("started_at",), "out_of_range"),
    (("model", "preset"), "llama-9", ("model", "preset"), "unknown_preset"),
    (("model",), {"hf_config": {"model_type": "nobody"}}, ("model", "hf_config", "model_type"), "unknown_model_type"),
    (("cluster",), SPEC | {"gpu": "h900"}, ("cluster", "gpu"), "unknown_gpu"),
    (("cluster",), {"preset": "dgx-h900", "nodes": 1}, ("cluster", "preset"), "unknown_preset"),
    (("workload", "sequence_length"), None, ("workload", "sequence_length"), "missing"),
]


class TestBadRuns:
    @pytest.mark.parametrize(("path", "value", "place", "code"), BAD)
    def test_the_field_and_the_rule_are_named(
        self, refusing: TestClient, path: Place, value: Any, place: Place, code: str
    ) -> None:
        bad = changed(RUN, path, value)
        assert places(refusing, bad) == [(place, code)]
        assert places(refusing, [RUN_OUT_OF_MEMORY, bad]) == [((1, *place), code)]

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
    def test_numbers_are_finite(self, refusing: TestClient, number: str) -> None:
        text = json.dumps(RUN).replace("47.65", number)
        answer = refusing.post("/v1/runs", content=text, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["body", "measured", "peak_reserved_gib"]

    def test_every_bad_run_is_named(self, refusing: TestClient) -> None:
        bad = RUN | {"measured": {"step_seconds": 0}}
        body = [RUN if index % 2 else bad for index in range(1000)]
        expected = [((index, "measured", "step_seconds"), "greater_than") for index in range(0, 1000, 2)]
        assert places(refusing, body) == expected
        answer = refusing.post("/v1/runs", json=body).json()
        assert answer["detail"] == "body.0.measured.step_seconds: Input should be greater than 0 (and 499 more)"

    def test_a_run_with_endless_errors_is_named_all_the_same(self, refusing: TestClient) -> None:
        body = [RUN | {f"x{number}": 0 for number in range(100)}, RUN | {"y": 0}]
        found = places(refusing, body)
        assert len(found) == 11
        assert found[-1] == ((1, "y"), "extra_forbidden")

    def test_the_list_has_a_length(self, refusing: TestClient) -> None:
        assert places(refusing, []) == [((), "too_short")]
        assert places(refusing, [RUN] * 10_001) == [((), "too_long")]

    @pytest.mark.parametrize("body", [None, 7, "run", [7], [[RUN]]])
    def test_a_run_is_an_object(self, refusing: TestClient, body: Any) -> None:
        assert {code for _, code in places(refusing, body)} <= {"model_type", "missing"}

    def test_the_body_has_a_size(self, refusing: TestClient) -> None:
        body = b"[" + b" " * 32 * 2**20 + b"]"
        answer = refusing.post("/v1/runs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413


class TestBulk:
    def test_ten_thousand_runs_in_a_call(self, both: TestClient) -> None:
        body = [RUN | {"key": f"run-{number}"} for number in range(10_000)]
        ids = log(both, body)
        assert len(set(ids)) == 10_000
        assert ids == sorted(ids)
        # Newest first: the last of the list.
        page = both.get("/v1/runs", params={"limit": 100}).json()
        assert [item["id"] for item in page["items"]] == ids[:-101:-1]
        assert page["items"][0]["key"] == "run-9999"
        assert log(both, body[::-1]) == ids[::-1]


class TestList:
    def test_pages(self, both: TestClient) -> None:
        ids = log(both, keyed(*"abcdefg"))
        assert listed(both, limit=3) == ids[::-1]
        assert listed(both, limit=7) == ids[::-1]

    def test_filters(self, both: TestClient) -> None:
        torchao, litgpt, named = log(both, [RUN, RUN_OUT_OF_MEMORY, NAMED])
        assert listed(both, source="torchao") == [torchao]
        assert listed(both, source="nobody") == []
        assert listed(both, framework="ddp") == [litgpt]
        assert listed(both, framework="fsdp2", limit=1) == [named, torchao]
        assert listed(both, gpu="h100-sxm5-80gb") == [named, torchao]
        assert listed(both, gpu="h100-sxm5-80gb", source="torchao") == [torchao]
        assert listed(both, cluster="prod-a") == [named]
        assert listed(both, cluster="h100-sxm5-80gb/nvlink/4.5e+11//infiniband/5e+10") == [torchao]

    @pytest.mark.parametrize("query", ["page=2", "limit=0", "limit=101", "framework=jax", "cursor=x", "source=a%00b"])
    def test_bad_queries(self, client: TestClient, query: str) -> None:
        answer = client.get(f"/v1/runs?{query}")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["query", query.partition("=")[0]]


class TestOne:
    def test_a_deleted_run_is_gone(self, both: TestClient) -> None:
        kept, deleted = log(both, keyed("a", "b"))
        answer = both.delete(f"/v1/runs/{deleted}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert both.get(f"/v1/runs/{deleted}").status_code == 404
        assert both.delete(f"/v1/runs/{deleted}").status_code == 404
        assert listed(both) == [kept]

    @pytest.mark.parametrize("run_id", [UNKNOWN, "x", "a%00b"])
    def test_no_such_run(self, both: TestClient, run_id: str) -> None:
        for answer in (both.get(f"/v1/runs/{run_id}"), both.delete(f"/v1/runs/{run_id}")):
            assert answer.status_code == 404
            assert answer.json()["type"] == "urn:paraplan:problem:run-not-found"
