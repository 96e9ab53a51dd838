"""Measured searches over HTTP, on both databases: ask, tell, and what the result says of the trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.db.base import utc_now
from app.db.models import MeasuredTrial
from app.db.study_storage import StudyStorage
from app.jobs.executor import JobExecutor
from app.main import create_app
from app.repositories.searches import SearchRepository
from app.services.learner import train_on_runs
from app.services.search_solver import solve_request
from app.settings import Settings
from search.result import SearchResult

SEARCH = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64},
    "frameworks": ["megatron-lm", "fsdp2"],
    "mode": "measured",
    "budget": {"trials": 4},
    "plans": 3,
}
UNKNOWN = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> FastAPI:
    settings = Settings(
        database_url=database_url,
        queue_url=f"sqlite:///{tmp_path / 'queue.db'}",
        rate_limit="",
        embedded_worker=False,
    )
    return create_app(settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


_SOLVED: dict[str, SearchResult] = {}


def solve_once(request: Mapping[str, Any], **others: Any) -> SearchResult:
    """The real solver; most tests ask the same of it."""
    key = json.dumps(request, sort_keys=True)
    if key not in _SOLVED:
        _SOLVED[key] = solve_request(request, **others)
    return _SOLVED[key]


def create(client: TestClient, **changes: Any) -> str:
    answer = client.post("/v1/searches", json=SEARCH | changes)
    assert answer.status_code == 202, answer.text
    created: str = answer.json()["id"]
    return created


def work(app: FastAPI) -> None:
    executor = JobExecutor(app.state.database, app.state.settings, solve_once, train_on_runs, worker="test")
    for job_id in executor.queued():
        executor.execute(job_id)


@pytest.fixture
def search_id(app: FastAPI, client: TestClient) -> str:
    created = create(client)
    work(app)
    return created


def ask(client: TestClient, search_id: str) -> dict[str, Any]:
    answer = client.post(f"/v1/searches/{search_id}/trials")
    assert answer.status_code == 201, answer.text
    trial: dict[str, Any] = answer.json()
    return trial


def tell(client: TestClient, search_id: str, trial: int, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/searches/{search_id}/trials/{trial}", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def refused(client: TestClient, path: str, **body: Any) -> tuple[int, str, str]:
    answer = client.post(path, json=body or None)
    problem = answer.json()
    return answer.status_code, problem["type"].rpartition(":")[2], problem["detail"]


def measured(client: TestClient, search_id: str) -> dict[str, Any]:
    section: dict[str, Any] = client.get(f"/v1/searches/{search_id}").json()["result"]["measured"]
    return section


class TestAsk:
    def test_the_first_trial_is_the_first_analytical_plan(self, client: TestClient, search_id: str) -> None:
        plans = client.get(f"/v1/searches/{search_id}").json()["result"]["plans"]
        trial = ask(client, search_id)
        assert (trial["trial"], trial["strategy"], trial["nodes"]) == (0, plans[0]["strategy"], 1)
        assert trial["estimate"]["time"] == plans[0]["time"]
        assert trial["estimate"]["memory"] == plans[0]["memory"]

    def test_runners_that_ask_before_any_tell_are_given_different_strategies(
        self, client: TestClient, search_id: str
    ) -> None:
        with ThreadPoolExecutor(4) as runners:
            trials = list(runners.map(lambda _: ask(client, search_id), range(4)))
        assert len({trial["trial"] for trial in trials}) == 4
        strategies = [trial["strategy"] for trial in trials]
        assert all(strategies.count(strategy) == 1 for strategy in strategies)

    def test_a_budget_that_is_used_up(self, client: TestClient, search_id: str) -> None:
        trials = [ask(client, search_id)["trial"] for _ in range(4)]
        tell(client, search_id, trials[0], failed="error")
        status, kind, detail = refused(client, f"/v1/searches/{search_id}/trials")
        assert (status, kind) == (409, "nothing-to-ask")
        assert detail == "the budget of 4 trials is used up; 3 of them were not told yet"

    def test_an_answer_that_is_not_there_yet(self, client: TestClient) -> None:
        status, kind, detail = refused(client, f"/v1/searches/{create(client)}/trials")
        assert (status, kind) == (409, "search-not-answered")
        assert detail.endswith("is queued: its trials begin when it has succeeded")

    def test_an_analytical_search_has_no_trials(self, client: TestClient) -> None:
        search_id = create(client, mode="analytical")
        for path in ("trials", "trials/0"):
            body = {"failed": "error"} if path == "trials/0" else {}
            status, kind, _ = refused(client, f"/v1/searches/{search_id}/{path}", **body)
            assert (status, kind) == (409, "search-not-measured")

    def test_a_search_that_found_nothing_says_so(self, app: FastAPI, client: TestClient) -> None:
        search_id = create(
            client, model={"preset": "gpt-3-175b"}, workload=SEARCH["workload"] | {"sequence_length": 2048}
        )
        work(app)
        assert client.get(f"/v1/searches/{search_id}").json()["result"]["measured"]["candidates"] == 0
        status, kind, detail = refused(client, f"/v1/searches/{search_id}/trials")
        assert (status, kind) == (409, "nothing-to-ask")
        assert detail.startswith("nothing fits the memory")

    def test_every_candidate_was_given_out(self, app: FastAPI, client: TestClient) -> None:
        space = {"framework": ["fsdp2"], "micro_batch_size": [1], "tensor_parallel_size": [1],
                 "pipeline_parallel_size": [1], "context_parallel_size": [1], "activation_checkpointing": ["selective"],
                 "zero_stage": [3], "offload": ["none"], "data_parallel_replicate_size": [1]}  # fmt: skip
        search_id = create(client, frameworks=["fsdp2"], space=space, budget={"trials": 50})
        work(app)
        candidates = measured(client, search_id)["candidates"]
        for _ in range(candidates):
            ask(client, search_id)
        status, kind, detail = refused(client, f"/v1/searches/{search_id}/trials")
        assert (status, kind) == (409, "nothing-to-ask")
        assert detail == f"each of the {candidates} candidates was given out"

    def test_an_unknown_search(self, client: TestClient) -> None:
        assert refused(client, f"/v1/searches/{UNKNOWN}/trials")[:2] == (404, "search-not-found")
        assert refused(client, "/v1/searches/none/trials")[:2] == (404, "search-not-found")


def end_leases(app: FastAPI) -> None:
    with app.state.database.write() as session:
        session.execute(update(MeasuredTrial).values(lease_until=utc_now() - timedelta(seconds=1)))


class TestLease:
    def test_a_trial_that_nobody_tells_of_is_given_to_one_other(
        self, app: FastAPI, client: TestClient, search_id: str
    ) -> None:
        first = ask(client, search_id)
        end_leases(app)
        again = ask(client, search_id)
        assert (again["trial"], again["strategy"], again["times_asked"]) == (first["trial"], first["strategy"], 2)
        end_leases(app)
        other = ask(client, search_id)
        assert other["trial"] != first["trial"]
        assert other["strategy"] != first["strategy"]
        assert tell(client, search_id, first["trial"], measured={"step_seconds": 9.0})["state"] == "measured"


def said(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class TestTell:
    def test_a_run_is_logged(self, client: TestClient, search_id: str) -> None:
        trial = ask(client, search_id)
        figures = {"step_seconds": 9.5, "peak_allocated_gib": 50.0}
        told = tell(client, search_id, trial["trial"], measured=figures)
        run = client.get(f"/v1/runs/{told['run']}").json()
        assert run["key"] == f"search:{search_id}:trial:{trial['trial']}"
        assert (run["source"], run["family"]) == (f"search:{search_id}",) * 2
        assert said(run["measured"]) == figures
        assert said(run["strategy"]) == said(trial["strategy"])
        assert said(run["cluster"]) == {"preset": "dgx-h100", "nodes": 1}
        assert told["ratio"] == pytest.approx(9.5 / trial["estimate"]["time"]["step_seconds"])

    def test_out_of_memory_is_a_run_too_and_an_error_is_none(self, client: TestClient, search_id: str) -> None:
        first, second = ask(client, search_id), ask(client, search_id)
        told = tell(client, search_id, first["trial"], failed="out_of_memory")
        assert client.get(f"/v1/runs/{told['run']}").json()["measured"]["out_of_memory"] is True
        assert tell(client, search_id, second["trial"], failed="error")["run"] is None
        assert len(client.get("/v1/runs").json()["items"]) == 1

    def test_the_same_again_is_the_same_and_another_outcome_a_conflict(
        self, client: TestClient, search_id: str
    ) -> None:
        trial = ask(client, search_id)["trial"]
        first = tell(client, search_id, trial, measured={"step_seconds": 9.5})
        assert tell(client, search_id, trial, measured={"step_seconds": 9.5}) == first
        path = f"/v1/searches/{search_id}/trials/{trial}"
        assert refused(client, path, measured={"step_seconds": 9.6})[:2] == (409, "trial-told")
        assert refused(client, path, failed="error")[:2] == (409, "trial-told")
        assert len(client.get("/v1/runs").json()["items"]) == 1

    def test_runners_that_tell_at_once_are_told_apart(self, client: TestClient, search_id: str) -> None:
        trial = ask(client, search_id)["trial"]

        def one(seconds: float) -> int:
            body = {"measured": {"step_seconds": seconds}}
            return client.post(f"/v1/searches/{search_id}/trials/{trial}", json=body).status_code

        with ThreadPoolExecutor(4) as runners:
            assert sorted(runners.map(one, [9.1, 9.2, 9.3, 9.4])) == [200, 409, 409, 409]

    def test_a_trial_that_was_not_given_out(self, client: TestClient, search_id: str) -> None:
        path = f"/v1/searches/{search_id}/trials/0"
        assert refused(client, path, failed="error")[:2] == (404, "trial-not-found")

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({}, "exactly_one"),
            ({"measured": {"step_seconds": 1.0}, "failed": "error"}, "exactly_one"),
            ({"measured": {"peak_allocated_gib": 50.0}}, "step_seconds_missing"),
            ({"measured": {}}, "nothing_measured"),
            ({"measured": {"step_seconds": -1.0}}, "greater_than"),
            ({"failed": "crashed"}, "literal_error"),
            ({"measured": {"step_seconds": 1.0, "peak_allocated_gib": 900.0}}, "too_large"),
            ({"measured": {"step_seconds": 1.0, "pipeline_stage": 64}}, "too_large"),
        ],
    )
    def test_what_is_no_outcome(self, client: TestClient, search_id: str, body: dict[str, Any], code: str) -> None:
        trial = ask(client, search_id)["trial"]
        answer = client.post(f"/v1/searches/{search_id}/trials/{trial}", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["code"] == code
        assert measured(client, search_id)["told"] == 0


class TestResult:
    def test_it_lists_the_trials_and_what_they_say(self, client: TestClient, search_id: str) -> None:
        assert measured(client, search_id)["trials"] == []
        first, second, third = (ask(client, search_id) for _ in range(3))
        estimated = [trial["estimate"]["time"]["step_seconds"] for trial in (first, second)]
        peak = first["estimate"]["memory"]["peak_allocated_gib"] * 1.05
        tell(client, search_id, first["trial"], measured={"step_seconds": 20.0, "peak_allocated_gib": peak})
        tell(client, search_id, second["trial"], measured={"step_seconds": 10.0})
        section = measured(client, search_id)
        assert (section["budget_trials"], section["asked"], section["told"]) == (4, 3, 2)
        assert section["best"]["trial"] == second["trial"]
        assert section["gain"] == pytest.approx(0.5)
        ratios = sorted([20.0 / estimated[0], 10.0 / estimated[1]])
        assert section["correction"]["factor"] == pytest.approx(sum(ratios) / 2)
        assert section["correction"]["memory_factor"] == pytest.approx(1.05)
        assert [trial["state"] for trial in section["trials"]] == ["measured", "measured", "asked"]
        assert section["trials"][2]["strategy"] == third["strategy"]

    def test_an_analytical_result_has_none(self, app: FastAPI, client: TestClient) -> None:
        search_id = create(client, mode="analytical", budget={"trials": 1})
        work(app)
        assert measured(client, search_id) is None

    def test_defaults_are_listed(self, app: FastAPI, client: TestClient) -> None:
        search_id = create(client, budget={"seconds": 30.0})
        work(app)
        result = client.get(f"/v1/searches/{search_id}").json()["result"]
        assert "budget.trials left out: 15 runs on the cluster, after 128 analytical trials" in result["assumptions"]
        assert (result["trials"], result["measured"]["budget_trials"]) == (128, 15)

    def test_a_front_cannot_be_measured(self, client: TestClient) -> None:
        answer = client.post("/v1/searches", json=SEARCH | {"objective": "pareto"})
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["body", "objective"])


def died(*_: object) -> None:
    raise RuntimeError("killed")


class TestStudy:
    def test_optuna_has_the_trials_in_the_same_database(self, app: FastAPI, client: TestClient, search_id: str) -> None:
        trials = [ask(client, search_id) for _ in range(3)]
        tell(client, search_id, trials[0]["trial"], measured={"step_seconds": 9.5})
        tell(client, search_id, trials[1]["trial"], failed="out_of_memory")
        storage = StudyStorage(app.state.database)
        study = optuna.load_study(study_name=search_id, storage=storage.open())
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "RUNNING"]
        assert study.best_value == pytest.approx(9.5)
        assert study.best_params["framework"] == trials[0]["strategy"]["framework"]
        storage.dispose()

    def test_a_process_that_died_between_store_and_study_is_made_up_for(
        self, app: FastAPI, client: TestClient, search_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trial = ask(client, search_id)["trial"]
        with monkeypatch.context() as dying:
            dying.setattr("app.services.search_trials.tell", died)
            outcome = {"measured": {"step_seconds": 9.5}}
            assert client.post(f"/v1/searches/{search_id}/trials/{trial}", json=outcome).status_code == 500
        ask(client, search_id)
        storage = StudyStorage(app.state.database)
        study = optuna.load_study(study_name=search_id, storage=storage.open())
        assert study.best_value == pytest.approx(9.5)
        storage.dispose()

    def test_studies_of_purged_searches_are_deleted(self, app: FastAPI, client: TestClient, search_id: str) -> None:
        ask(client, search_id)
        storage = StudyStorage(app.state.database)
        optuna.create_study(storage=storage.open(), study_name="of somebody else")
        assert storage.purge() == 0
        with app.state.database.write() as session:
            assert SearchRepository(session).purge(utc_now() + timedelta(days=1)) == 1
        assert storage.purge() == 1
        assert optuna.get_all_study_names(storage.open()) == ["of somebody else"]
        storage.dispose()
