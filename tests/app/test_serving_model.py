"""The version that serves, as requests and searches get it: loaded once, changed at once, never a refused one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from app.db.base import utc_now
from app.db.models import Job
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.repositories.jobs import JobRepository
from app.repositories.memory_models import Artifact
from app.schemas.examples import ESTIMATE, MEGATRON_STRATEGY
from app.services.learner import load_artifact
from app.services.search_runs import Report
from app.services.searches import SearchService
from app.services.serving_model import KEPT_VERSIONS, Served, ServingModel
from app.settings import Settings
from cost_models.cluster_input import resolve_cluster
from cost_models.corrections import Corrections
from cost_models.learned import LearnedCorrections
from search.result import Progress, SearchResult, Trial
from tests.app.learned_versions import promote, store_version, version_of
from tests.app.test_job_executor import RESULT, learn_nothing, progress, trial
from tests.http_service import Work


class CountingLoad:
    """The real one; counts, and can be made to wait."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.open = threading.Event()
        self.open.set()

    def __call__(self, artifact: Artifact, *, version: int) -> Corrections:
        self.versions.append(version)
        self.open.wait()
        return load_artifact(artifact, version=version)


@pytest.fixture
def load() -> CountingLoad:
    return CountingLoad()


def test_without_a_version_the_formulas_serve(database: Database) -> None:
    served = ServingModel(database).current()
    assert served == Served(None)
    assert served.version is None
    assert "there is no learned memory model yet" in served.sentence


def test_a_version_is_loaded_once_and_the_next_one_as_soon_as_it_is_promoted(
    database: Database, load: CountingLoad
) -> None:
    serving = ServingModel(database, load=load)
    store_version(database, 1, version_of())
    assert [serving.current().version for _ in range(3)] == [1, 1, 1]
    store_version(database, 2, version_of())
    assert serving.current().version == 2
    promote(database, 1)
    assert serving.current().version == 1
    assert load.versions == [1, 2]


def test_memory_holds_the_latest_versions_only(database: Database, load: CountingLoad) -> None:
    serving = ServingModel(database, load=load)
    for version in range(1, KEPT_VERSIONS + 2):
        store_version(database, version, version_of())
        assert serving.current().version == version
    assert serving.version(1) is not None
    assert load.versions == [*range(1, KEPT_VERSIONS + 2), 1]


def test_threads_that_ask_at_once_wait_for_one_loading(database: Database, load: CountingLoad) -> None:
    store_version(database, 1, version_of())
    serving = ServingModel(database, load=load)
    load.open.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(serving.current) for _ in range(8)]
        while not load.versions:
            pass
        load.open.set()
        served = [one.result() for one in asked]
    assert load.versions == [1]
    assert len({id(one.corrections) for one in served}) == 1


def test_promotions_meanwhile_give_every_request_one_whole_version(database: Database, load: CountingLoad) -> None:
    store_version(database, 1, version_of({("a", "ddp"): 1.5}))
    store_version(database, 2, version_of({("a", "ddp"): 2.5}), serving=False)
    serving = ServingModel(database, load=load)
    ended = threading.Event()

    def ask() -> set[tuple[int | None, float]]:
        seen = set()
        while not ended.is_set():
            served = serving.current()
            assert isinstance(served.corrections, LearnedCorrections)
            assert served.refused is None
            [factor] = served.corrections.times.by_group.values()
            seen.add((served.version, round(factor.log_factor, 6)))
        return seen

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        for version in (2, 1, 2, 1, 2):
            promote(database, version)
        ended.set()
        seen = set().union(*(one.result() for one in asked))
    assert seen <= {(1, 0.405465), (2, 0.916291)}
    assert serving.current().version == 2
    assert sorted(load.versions) in ([1, 2], [2])


def test_a_corrupted_version_is_said_once_and_the_last_good_one_goes_on(database: Database) -> None:
    refusals: list[None] = []
    serving = ServingModel(database, on_refusal=lambda: refusals.append(None))
    store_version(database, 1, version_of())
    assert serving.current().version == 1
    store_version(database, 2, version_of(), corrupted=True)
    with capture_logs() as logs:
        served = [serving.current() for _ in range(3)]
    assert {(one.version, one.refused) for one in served} == {(1, 2)}
    assert served[0].sentence == (
        "version 2, which should serve, was refused when it was loaded: version 1 of what was learned from measured "
        "runs corrects memory and step time"
    )
    assert len(refusals) == 1
    assert [entry["memory_model_version"] for entry in logs if entry["event"] == "memory_model_refused"] == [2]
    store_version(database, 3, version_of())
    assert serving.current().version == 3


def test_a_process_that_starts_with_a_corrupted_version_serves_the_last_good_one(database: Database) -> None:
    store_version(database, 1, version_of())
    store_version(database, 2, version_of())
    store_version(database, 3, version_of(), corrupted=True)
    store_version(database, 4, version_of(), corrupted=True)
    served = ServingModel(database).current()
    assert (served.version, served.refused) == (2, 4)


def test_a_corrupted_first_version_leaves_the_formulas(database: Database) -> None:
    store_version(database, 1, version_of(), corrupted=True)
    served = ServingModel(database).current()
    assert (served.corrections, served.refused) == (None, 1)
    assert served.sentence.endswith("was refused when it was loaded: no correction is applied")


class TestEstimates:
    def ask(self, client: TestClient, **changes: Any) -> dict[str, Any]:
        answer = client.post("/v1/estimates", json=ESTIMATE | {"strategies": [MEGATRON_STRATEGY]} | changes)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def test_the_serving_version_corrects_them_and_is_named(self, http_app: FastAPI, client: TestClient) -> None:
        before = self.ask(client)
        assert before["memory_model_version"] is None
        identity = resolve_cluster(ESTIMATE["cluster"]).identity
        store_version(http_app.state.database, 4, version_of({(identity, "megatron-lm"): 1.5}, version=4))
        after, off = self.ask(client), self.ask(client, learned=False)
        assert after["memory_model_version"] == 4
        assert (
            "learned left out: true; version 4 of what was learned from measured runs corrects memory and step time"
            in after["assumptions"]
        )
        [plain], [corrected] = before["estimates"], after["estimates"]
        assert corrected["time"]["step_seconds"] == pytest.approx(plain["time"]["step_seconds"] * 1.5, rel=1e-6)
        assert corrected["provenance"]["time"] == "learned"
        assert any("from 8 runs of megatron-lm on this cluster" in note for note in corrected["provenance"]["notes"])
        assert off["estimates"] == before["estimates"]
        assert off["memory_model_version"] is None
        assert not any(sentence.startswith("learned") for sentence in off["assumptions"])

    def test_a_corrupted_version_is_counted_and_said(self, http_app: FastAPI, client: TestClient) -> None:
        before = self.ask(client)
        store_version(http_app.state.database, 1, version_of(), corrupted=True)
        after = self.ask(client)
        assert after["estimates"] == before["estimates"]
        assert any("version 1, which should serve, was refused" in sentence for sentence in after["assumptions"])
        assert "paraplan_memory_models_refused_total 1.0" in client.get("/metrics").text


def test_a_search_names_the_version_that_served(http_app: FastAPI, client: TestClient, work: Work) -> None:
    store_version(http_app.state.database, 9, version_of(version=9))
    request = {
        "model": {"preset": "gpt-2-xl"},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "workload": {"sequence_length": 1024, "global_batch_size": 32},
        "frameworks": ["ddp"],
        "budget": {"trials": 1},
    }

    def found(**more: Any) -> Any:
        search_id = client.post("/v1/searches", json=request | more).json()["id"]
        work()
        return client.get(f"/v1/searches/{search_id}").json()["result"]

    result, off = found(), found(learned=False)
    assert result["memory_model_version"] == 9
    assert (
        "learned left out: true; version 9 of what was learned from measured runs corrects memory and step time"
        in result["assumptions"]
    )
    assert all("version 9" in " ".join(plan["provenance"]["notes"]) for plan in result["plans"])
    assert off["memory_model_version"] is None
    assert not any("learned" in sentence for sentence in off["assumptions"])
    assert all(plan["memory"]["breakdown_gib"]["learned_correction"] == 0 for plan in off["plans"])


class TestResumedSearch:
    """A search whose first worker falls silent."""

    def attempts(self, database: Database, url: str, between: Any) -> list[int | None]:
        """The versions that the first and the second attempt were given; `between` is done in the middle."""
        settings = Settings(database_url=url, lease_seconds=5.0, heartbeat_seconds=0.02)
        jobs: list[str] = []
        service = SearchService(database, wake=jobs.append, max_attempts=3)
        service.create({"seed": 7}, labels={})
        versions: list[int | None] = []

        def solve(
            request: Mapping[str, Any], *, past: Sequence[Trial], report: Report, cancelled: Any, served: Served
        ) -> SearchResult:
            del request, cancelled
            versions.append(served.version)
            if not past:
                report(progress(1), [trial(0)])
                self.lose(database, jobs[0])
                report(Progress("study", 2, 9, 2, None), [trial(1)])
            return RESULT

        JobExecutor(database, settings, solve, learn_nothing, worker="first").execute(jobs[0])
        between()
        with database.write() as session:
            job = session.get(Job, jobs[0])
            assert job is not None
            job.lease_until = utc_now() - timedelta(days=2)
        JobExecutor(database, settings, solve, learn_nothing, worker="second").execute(jobs[0])
        return versions

    def lose(self, database: Database, job_id: str) -> None:
        later = utc_now() + timedelta(days=1)
        with database.write() as session:
            assert JobRepository(session).claim(job_id, "thief", now=later, lease_until=later)

    def test_goes_on_with_the_version_that_it_began_with(self, database: Database, database_url: str) -> None:
        store_version(database, 1, version_of())
        versions = self.attempts(database, database_url, lambda: store_version(database, 2, version_of()))
        assert versions == [1, 1]

    def test_goes_on_without_one_where_none_served(self, database: Database, database_url: str) -> None:
        versions = self.attempts(database, database_url, lambda: store_version(database, 1, version_of()))
        assert versions == [None, None]

    def test_takes_the_one_that_serves_where_its_own_is_gone(self, database: Database, database_url: str) -> None:
        store_version(database, 1, version_of())

        def replace() -> None:
            store_version(database, 2, version_of())
            with database.write() as session:
                session.connection().exec_driver_sql("DELETE FROM memory_models WHERE version = 1")

        assert self.attempts(database, database_url, replace) == [1, 2]
