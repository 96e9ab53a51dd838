"""`searches` over HTTP. The solver is scripted: what a search finds is the business of `search`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from jsonschema_rs import Draft202012Validator

from app.main import create_app
from app.schemas.examples import FSDP_STRATEGY, SEARCH
from app.settings import Settings
from search.result import Progress, SearchResult
from tests.http_service import Work

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def scripted(request: Any, *, past: Any, report: Any, cancelled: Any, served: Any) -> SearchResult:
    report(Progress("lattice", 10, 20, 0, None), [])
    report(Progress("study", 5, 128, 5, 12.5), [])
    return SearchResult(
        plans=(),
        tight=(),
        pareto=(),
        current=None,
        space_size=20,
        evaluated=20,
        trials=5,
        stopped_by="trials",
        elapsed_seconds=0.1,
        memory_model_version=None,
        rejected={"heads_not_divisible": 3},
        verdict="Nothing fits.",
        assumptions=(),
    )


def failing(request: Any, *, past: Any, report: Any, cancelled: Any, served: Any) -> SearchResult:
    raise RuntimeError("secret internals")


@pytest.fixture
def both(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """A client over each database."""
    settings = Settings(database_url=database_url, queue_url=f"sqlite:///{tmp_path / 'queue.db'}", rate_limit="")
    with TestClient(create_app(settings)) as client:
        yield client


def create(client: TestClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/searches", json=SEARCH | changes)
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestCreateSearch:
    def test_answers_where_the_search_is(self, client: TestClient) -> None:
        answer = client.post("/v1/searches", json=SEARCH)
        assert answer.status_code == 202
        search = answer.json()
        assert answer.headers["location"] == f"/v1/searches/{search['id']}"
        assert search == {
            "id": search["id"],
            "status": "queued",
            "created_at": search["created_at"],
            "finished_at": None,
            "labels": {"team": "a"},
            "progress": None,
            "error": None,
            "report": None,
            "result": None,
        }
        assert client.get(answer.headers["location"]).json() == search

    def test_needs_model_cluster_and_workload_only(self, client: TestClient) -> None:
        answer = client.post("/v1/searches", json={name: SEARCH[name] for name in ("model", "cluster", "workload")})
        assert answer.status_code == 202

    def test_one_key_is_one_search(self, client: TestClient) -> None:
        first = client.post("/v1/searches", json=SEARCH, headers={"Idempotency-Key": "k1"})
        again = client.post("/v1/searches", json=SEARCH, headers={"Idempotency-Key": "k1"})
        assert again.status_code == 202
        assert again.json() == first.json()
        assert again.headers["location"] == first.headers["location"]

    def test_one_key_with_another_request_is_a_conflict(self, client: TestClient) -> None:
        client.post("/v1/searches", json=SEARCH, headers={"Idempotency-Key": "k1"})
        answer = client.post("/v1/searches", json=SEARCH | {"seed": 1}, headers={"Idempotency-Key": "k1"})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:paraplan:problem:idempotency-conflict")

    @pytest.mark.parametrize("key", ["", "x" * 256, "with space"])
    def test_refuses_odd_keys(self, client: TestClient, key: str) -> None:
        answer = client.post("/v1/searches", json=SEARCH, headers={"Idempotency-Key": key})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["header", "Idempotency-Key"]

    def test_the_whole_request_reaches_the_worker(self, client: TestClient, work: Work) -> None:
        asked = SEARCH | {"current": FSDP_STRATEGY, "space": {"tensor_parallel_size": [1, 2]}, "nodes_options": [4, 8]}
        seen: list[Any] = []

        def recording(request: Any, **rest: Any) -> SearchResult:
            seen.append(request)
            return scripted(request, **rest)

        create(client, **asked)
        work(recording)
        assert seen == [asked]


class TestGetSearch:
    def test_a_finished_search_has_its_result(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]
        work(scripted)
        search = client.get(f"/v1/searches/{search_id}").json()
        assert search["status"] == "succeeded"
        assert search["finished_at"] > search["created_at"]
        assert search["progress"] == {"phase": "study", "done": 5, "total": 128, "trials": 5, "best_step_seconds": 12.5}
        assert search["result"]["rejected"] == {"heads_not_divisible": 3}
        assert search["result"]["plans"] == []

    def test_a_failed_search_says_so_without_internals(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]
        work(failing)
        search = client.get(f"/v1/searches/{search_id}").json()
        assert search["status"] == "failed"
        assert search["result"] is None
        assert search["error"] is not None
        assert "secret internals" not in str(search["error"])

    @pytest.mark.parametrize("search_id", [UNKNOWN, "x", "%00", "0" * 400])
    @pytest.mark.parametrize("suffix", ["", "/events"])
    def test_unknown_ids(self, client: TestClient, search_id: str, suffix: str) -> None:
        answer = client.get(f"/v1/searches/{search_id}{suffix}")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:paraplan:problem:search-not-found")


class TestListSearches:
    def test_pages_newest_first(self, both: TestClient) -> None:
        ids = [create(both, labels={"n": str(number)})["id"] for number in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        sizes = []
        while cursor is not None or not sizes:
            page = both.get("/v1/searches", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
            seen += [item["id"] for item in page["items"]]
            sizes.append(len(page["items"]))
            cursor = page["next_cursor"]
        assert seen == ids[::-1]
        assert sizes == [2, 2, 1]

    def test_filters_by_label(self, both: TestClient) -> None:
        first, second = create(both, labels={"team": "a"}), create(both, labels={"team": "b=c"})
        create(both, labels={})

        def found(label: str) -> list[str]:
            return [item["id"] for item in both.get("/v1/searches", params={"label": label}).json()["items"]]

        assert found("team=a") == [first["id"]]
        assert found("team=b=c") == [second["id"]]
        assert found("team") == [second["id"], first["id"]]
        assert found("team=") == []

    def test_filters_by_status(self, client: TestClient, work: Work) -> None:
        create(client)
        work(scripted)
        create(client)
        for status, count in (("succeeded", 1), ("queued", 1), ("failed", 0)):
            items = client.get("/v1/searches", params={"status": status}).json()["items"]
            assert [item["status"] for item in items] == [status] * count

    def test_items_carry_no_result(self, client: TestClient, work: Work) -> None:
        create(client)
        work(scripted)
        assert client.get("/v1/searches").json()["items"][0]["result"] is None

    @pytest.mark.parametrize(
        ("query", "loc", "code"),
        [
            ({"limit": 0}, "limit", "greater_than_equal"),
            ({"limit": 101}, "limit", "less_than_equal"),
            ({"limit": "ten"}, "limit", "int_parsing"),
            ({"cursor": "abc"}, "cursor", "invalid_cursor"),
            ({"cursor": "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzE0OjAwIiwgIiJd"}, "cursor", "invalid_cursor"),
            ({"status": "done"}, "status", "literal_error"),
            ({"label": "=a"}, "label", "string_pattern_mismatch"),
            ({"labels": "a"}, "labels", "extra_forbidden"),
        ],
    )
    def test_bad_queries(self, client: TestClient, query: dict[str, Any], loc: str, code: str) -> None:
        answer = client.get("/v1/searches", params=query)
        assert answer.status_code == 422
        assert [(error["loc"], error["code"]) for error in answer.json()["errors"]] == [(["query", loc], code)]


class TestCancelSearch:
    def test_a_waiting_search_ends_at_once(self, both: TestClient) -> None:
        search_id = create(both)["id"]
        answer = both.post(f"/v1/searches/{search_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")

    def test_an_ended_search_cannot_be_cancelled(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]
        work(scripted)
        answer = client.post(f"/v1/searches/{search_id}/cancel")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:paraplan:problem:search-ended")

    def test_what_was_found_is_kept(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]

        def cancelled_on_the_way(request: Any, *, past: Any, report: Any, cancelled: Any, served: Any) -> SearchResult:
            assert client.post(f"/v1/searches/{search_id}/cancel").status_code == 202
            report(Progress("study", 5, 128, 5, 12.5), [])
            while not cancelled():
                pass
            return scripted(request, past=past, report=lambda *_: None, cancelled=cancelled, served=served)

        work(cancelled_on_the_way)
        search = client.get(f"/v1/searches/{search_id}").json()
        assert search["status"] == "cancelled"
        assert search["result"]["evaluated"] == 20

    def test_an_unknown_id(self, client: TestClient) -> None:
        assert client.post(f"/v1/searches/{UNKNOWN}/cancel").status_code == 404


class TestWatchSearch:
    def test_progress_then_done(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]
        work(scripted)
        answer = client.get(f"/v1/searches/{search_id}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert re.findall(r"^event: (\w+)$", answer.text, re.MULTILINE) == ["progress", "done"]
        assert 'data: {"status": "succeeded"}' in answer.text
        assert '"best_step_seconds": 12.5' in answer.text

    def test_progress_that_was_seen_is_not_repeated(self, client: TestClient, work: Work) -> None:
        search_id = create(client)["id"]
        work(scripted)
        address = f"/v1/searches/{search_id}/events"
        last = re.findall(r"^id: (\d+)$", client.get(address).text, re.MULTILINE)[-1]
        again = client.get(address, headers={"Last-Event-ID": last})
        assert re.findall(r"^event: (\w+)$", again.text, re.MULTILINE) == ["done"]


class TestRealSearch:
    def test_finds_plans_as_described(self, client: TestClient, http_app: FastAPI, work: Work) -> None:
        current = {"framework": "fsdp2", "context_parallel_size": 2, "activation_checkpointing": "full"}
        search_id = create(client, budget={"trials": 16, "seconds": 60}, current=current, plans=3)["id"]
        work()
        search = client.get(f"/v1/searches/{search_id}").json()
        assert search["status"] == "succeeded", search["error"]
        schemas = http_app.openapi()["components"]["schemas"]
        Draft202012Validator({"$ref": "#/components/schemas/Search", "components": {"schemas": schemas}}).validate(
            search
        )
        result = search["result"]
        assert [plan["rank"] for plan in result["plans"]] == [1, 2, 3]
        assert all(plan["fits"] and plan["explanation"] for plan in result["plans"])
        assert result["plans"][0]["time"]["step_seconds"] <= result["plans"][1]["time"]["step_seconds"]
        assert result["stopped_by"] == "trials"
        assert result["current"] is not None
        assert "mode left out: analytical" in result["assumptions"]
