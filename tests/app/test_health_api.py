"""Liveness, readiness and metrics."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from app.db import migrate
from app.main import create_app
from app.schemas.examples import ESTIMATE, SEARCH
from app.settings import Settings
from tests.app.trainings import FakeTrain, log_runs
from tests.http_service import Work


def samples(client: TestClient, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by the values of their labels, in the order of the labels' names."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


class TestHealth:
    def test_alive(self, client: TestClient) -> None:
        assert client.get("/healthz").json() == {"status": "ok"}

    def test_ready(self, client: TestClient) -> None:
        assert client.get("/readyz").json() == {"status": "ok"}

    def test_not_ready_without_the_schema(self, tmp_path: Path) -> None:
        with TestClient(create_app(Settings(database_url=f"sqlite:///{tmp_path / 'new.db'}"))) as client:
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:paraplan:problem:not-ready")
            assert client.get("/healthz").status_code == 200

    def test_not_ready_with_an_old_schema(self, client: TestClient, http_app: FastAPI) -> None:
        migrate.downgrade(http_app.state.database.engine, "base")
        assert client.get("/readyz").status_code == 503


class TestMetrics:
    def test_requests_by_route_template(self, client: TestClient) -> None:
        for path in ("/v1/searches/a", "/v1/searches/b", "/nope/1", "/nope/2"):
            client.get(path)
        counted = samples(client, "paraplan_http_requests_total")
        assert counted == {("GET", "/v1/searches/{id}", "404"): 2, ("ANY", "(no route)", "404"): 2}

    def test_searches_and_the_queue(self, client: TestClient) -> None:
        client.post("/v1/searches", json=SEARCH)
        created = client.post("/v1/searches", json=SEARCH)
        client.post(f"{created.headers['location']}/cancel")
        by_status = samples(client, "paraplan_searches")
        assert by_status == {("queued",): 1, ("cancelled",): 1, ("running",): 0, ("succeeded",): 0, ("failed",): 0}
        assert samples(client, "paraplan_queue_depth") == {(): 1}
        assert samples(client, "paraplan_searches_created_total") == {(): 2}

    def test_how_long_searches_took(self, client: TestClient, work: Work) -> None:
        assert samples(client, "paraplan_recent_search_seconds") == {}
        client.post("/v1/searches", json=SEARCH | {"budget": {"trials": 1, "seconds": 60}})
        work()
        took = samples(client, "paraplan_recent_search_seconds")
        assert set(took) == {("0.5",), ("0.9",), ("1",)}
        assert took[("1",)] > 0

    def test_scored_strategies(self, client: TestClient) -> None:
        client.post("/v1/estimates", json=ESTIMATE)
        assert samples(client, "paraplan_estimates_total") == {(): len(ESTIMATE["strategies"])}

    def test_what_is_learned(self, client: TestClient, http_app: FastAPI, work: Work) -> None:
        assert samples(client, "paraplan_memory_model_serving_version") == {}
        assert samples(client, "paraplan_memory_model_training_seconds") == {}
        client.post("/v1/memory-models")
        work(train=FakeTrain())
        client.post("/v1/memory-models")
        work(train=FakeTrain(promote=False))
        log_runs(http_app.state.database, 2)
        assert samples(client, "paraplan_memory_model_serving_version") == {(): 1}
        assert samples(client, "paraplan_memory_model_training_seconds")[()] >= 0
        by_state = samples(client, "paraplan_memory_models")
        assert {state: count for state, count in by_state.items() if count} == {("serving",): 1, ("kept",): 1}
        assert set(by_state) == {("queued",), ("running",), ("serving",), ("archived",), ("kept",), ("failed",)}
        assert (samples(client, "paraplan_runs"), samples(client, "paraplan_runs_since_training")) == ({(): 2}, {(): 2})
        assert samples(client, "paraplan_memory_models_refused_total") == {(): 0}
