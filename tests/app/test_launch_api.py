"""Launch files over HTTP, of plans that a real search found."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.schemas.examples import FSDP_STRATEGY, SEARCH
from search.launch.targets import TARGETS
from search.result import SearchResult
from tests.app.test_searches_api import UNKNOWN, create, failing
from tests.http_service import Work

SMALL: dict[str, Any] = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 128, "training_tokens": 1e12},
    "frameworks": ["megatron-lm"],
    "space": {"micro_batch_size": [1], "offload": ["none"], "pipeline_schedule": ["1f1b"]},
    "budget": {"trials": 4, "seconds": 60},
    "plans": 3,
}


@pytest.fixture
def search_id(client: TestClient, work: Work) -> str:
    answer = client.post("/v1/searches", json=SMALL)
    work()
    identifier: str = answer.json()["id"]
    return identifier


def plans(client: TestClient, search_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v1/searches/{search_id}").json()["result"]["plans"]
    return found


def of_one_plan(plan: dict[str, Any]) -> Any:
    """A solver that finds this plan."""

    def solve(request: Any, **rest: Any) -> SearchResult:
        fields: dict[str, Any] = dict.fromkeys(("tight", "pareto", "assumptions"), ())
        return SearchResult(
            plans=(plan,),
            current=None,
            space_size=1,
            evaluated=1,
            trials=0,
            stopped_by="trials",
            elapsed_seconds=0.0,
            memory_model_version=None,
            rejected={},
            verdict="",
            **fields,
        )

    return solve


class TestLaunchFiles:
    def test_every_plan_has_files_with_its_degrees(self, client: TestClient, search_id: str) -> None:
        found = plans(client, search_id)
        assert len(found) == 3
        for plan in found:
            answer = client.get(f"/v1/searches/{search_id}/plans/{plan['rank']}/launch?target=megatron-lm")
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert set(body) == {"target", "files", "command", "environment", "notes"}
            assert body["target"] == "megatron-lm"
            assert body["command"] == "bash train.sh"
            script = body["files"][0]["content"]
            for option, field in (
                ("tensor-model-parallel-size", "tensor_parallel_size"),
                ("pipeline-model-parallel-size", "pipeline_parallel_size"),
                ("context-parallel-size", "context_parallel_size"),
                ("micro-batch-size", "micro_batch_size"),
            ):
                assert f"--{option} {plan['strategy'][field]} " in script
            assert "--global-batch-size 128 " in script

    def test_the_first_target_is_the_default(self, client: TestClient, search_id: str) -> None:
        named = client.get(f"/v1/searches/{search_id}/plans/1/launch?target=megatron-lm")
        assert client.get(f"/v1/searches/{search_id}/plans/1/launch").json() == named.json()

    def test_a_plan_has_as_many_nodes_as_it_was_found_for(self, client: TestClient, work: Work, search_id: str) -> None:
        plan = plans(client, search_id)[0]
        grown = plan | {"nodes": 2, "strategy": plan["strategy"] | {"data_parallel_size": 16}}
        created = create(client, **SMALL | {"nodes_options": [1, 2]})
        work(of_one_plan(grown))
        answer = client.get(f"/v1/searches/{created['id']}/plans/1/launch").json()
        assert "#SBATCH --nodes=2\n" in answer["files"][1]["content"]


class TestRefusals:
    def test_a_rank_that_is_no_plan_s(self, client: TestClient, search_id: str) -> None:
        answer = client.get(f"/v1/searches/{search_id}/plans/4/launch")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:paraplan:problem:plan-not-found")
        assert "3 plans" in answer.json()["detail"]

    @pytest.mark.parametrize("rank", ["0", "-1", "x", "1.5"])
    def test_a_rank_that_is_none(self, client: TestClient, search_id: str, rank: str) -> None:
        answer = client.get(f"/v1/searches/{search_id}/plans/{rank}/launch")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == ["path", "rank"]

    def test_a_search_that_is_none(self, client: TestClient) -> None:
        answer = client.get(f"/v1/searches/{UNKNOWN}/plans/1/launch")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:paraplan:problem:search-not-found")

    def test_a_search_that_has_not_ended(self, client: TestClient) -> None:
        answer = client.get(f"/v1/searches/{create(client)['id']}/plans/1/launch")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:paraplan:problem:search-not-ended")

    def test_a_search_that_failed(self, client: TestClient, work: Work) -> None:
        identifier = create(client)["id"]
        work(failing)
        answer = client.get(f"/v1/searches/{identifier}/plans/1/launch")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:paraplan:problem:plan-not-found")

    @pytest.mark.parametrize("target", ["nanotron", "slurm"])
    def test_a_target_of_none_or_of_another_framework(self, client: TestClient, search_id: str, target: str) -> None:
        answer = client.get(f"/v1/searches/{search_id}/plans/1/launch?target={target}")
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert (error["loc"], error["code"]) == (["query", "target"], "unknown_target")
        assert all(known in error["message"] for known in TARGETS["megatron-lm"])

    @pytest.mark.parametrize("query", ["target=", "target=megatron-lm&verbose=1"])
    def test_odd_queries(self, client: TestClient, search_id: str, query: str) -> None:
        assert client.get(f"/v1/searches/{search_id}/plans/1/launch?{query}").status_code == 422

    def test_what_the_target_cannot_express_is_named(self, client: TestClient, work: Work, search_id: str) -> None:
        plan = plans(client, search_id)[0]
        odd = plan | {"strategy": plan["strategy"] | {"compile": True}}
        tuned = SEARCH | SMALL | {"workload": SMALL["workload"] | {"fine_tuning": {"method": "lora"}}}
        created = client.post("/v1/searches", json=tuned).json()
        work(of_one_plan(odd))
        answer = client.get(f"/v1/searches/{created['id']}/plans/1/launch?target=megatron-lm")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:paraplan:problem:not-expressible")
        assert [(tuple(error["loc"]), error["code"]) for error in answer.json()["errors"]] == [
            (("strategy", "compile"), "not_expressible"),
            (("workload", "fine_tuning"), "not_expressible"),
        ]

    def test_the_search_s_current_strategy_is_no_plan(self, client: TestClient, work: Work) -> None:
        created = create(client, **SMALL | {"current": FSDP_STRATEGY, "space": {"micro_batch_size": [512]}})
        work()
        assert client.get(f"/v1/searches/{created['id']}/plans/1/launch").status_code == 404
