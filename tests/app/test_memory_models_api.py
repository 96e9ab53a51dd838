"""`memory-models` over HTTP, with trainings that learn nothing; stored models are checked where that counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.db.base import utc_now
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.main import create_app
from app.repositories.memory_models import MemoryModelRepository
from app.services.memory_models import MemoryModelNotFound, MemoryModelService
from app.services.search_solver import solve_request
from app.settings import Settings
from tests.app.trainings import FakeTrain, log_runs, states

PATH = "/v1/memory-models"


def accept(*_: object, **__: object) -> str | None:
    return None


class Service:
    """A client, and a worker without learning; stored models are taken for good unless said otherwise."""

    def __init__(self, app: FastAPI, settings: Settings, client: TestClient) -> None:
        self.database: Database = app.state.database
        self.settings = settings
        self.client = client

    def train(self, train: FakeTrain | None = None) -> int:
        version: int = self.client.post(PATH).json()["version"]
        self.work(train)
        return version

    def work(self, train: FakeTrain | None = None) -> None:
        executor = JobExecutor(self.database, self.settings, solve_request, train or FakeTrain(), worker="test")
        for job_id in executor.queued():
            executor.execute(job_id)

    def get(self, path: str = "", **parameters: Any) -> Any:
        return self.client.get(f"{PATH}{path}", params=parameters).json()


@pytest.fixture
def service(http_app: FastAPI, settings: Settings, client: TestClient) -> Service:
    http_app.state.memory_models = MemoryModelService(
        http_app.state.database, settings, wake=lambda _: None, why_refused=accept
    )
    return Service(http_app, settings, client)


class TestCreate:
    @pytest.mark.parametrize("body", [{}, {"json": {}}])
    def test_answers_where_the_version_is(self, service: Service, body: dict[str, Any]) -> None:
        answer = service.client.post(PATH, **body)
        assert (answer.status_code, answer.headers["location"]) == (202, f"{PATH}/1")
        created = answer.json()
        assert (created["version"], created["state"], created["trigger"]) == (1, "queued", "request")
        assert created["figures"] is created["report"] is created["decision"] is None
        assert service.get("/1") == created

    def test_while_one_waits_it_is_the_answer(self, service: Service) -> None:
        assert [service.client.post(PATH).json()["version"] for _ in range(3)] == [1, 1, 1]
        service.work()
        assert service.client.post(PATH).json()["version"] == 2

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"json": {"runs": 3}}, 422),
            ({"json": []}, 422),
            ({"content": b"{"}, 415),
            ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
            ({"params": {"force": 1}}, 422),
        ],
    )
    def test_there_is_nothing_to_choose(self, service: Service, body: dict[str, Any], status: int) -> None:
        assert service.client.post(PATH, **body).status_code == status
        assert states(service.database) == {}


class TestGet:
    def test_a_trained_version_has_its_report(self, service: Service) -> None:
        service.train()
        found = service.get("/1")
        assert found["state"] == "serving"
        assert found["decision"] == {"promote": True, "reasons": ["as told"], "compared_with": None}
        assert found["report"]["candidate"]["source"]["by_group"]["megatron"]["formulas_alone"] == 0.0
        assert found["schema"] == "features-1"
        assert found["libraries"] == {"scikit-learn": "1.9.1"}
        assert len(found["sha256"]) == 64
        assert found["trained_at"] == found["promoted_at"]

    @pytest.mark.parametrize("version", ["0", "1", "-1", "2147483648", "9" * 30])
    def test_no_such_version(self, service: Service, version: str) -> None:
        answer = service.client.get(f"{PATH}/{version}")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:paraplan:problem:memory-model-not-found")

    def test_a_version_is_a_number(self, service: Service) -> None:
        assert service.client.get(f"{PATH}/latest").status_code == 422


class TestList:
    def test_none_yet(self, service: Service) -> None:
        found = service.get()
        assert (found["items"], found["next_cursor"], found["serving"]) == ([], None, None)
        assert found["schedule"] == {
            "cron": "23 2 * * *",
            "next_slot": found["schedule"]["next_slot"],
            "after_runs": 10,
            "runs_since_last": 0,
            "running": None,
            "queued": None,
        }
        assert found["schedule"]["next_slot"].endswith("T02:23:00Z")

    def test_newest_first_with_figures_and_what_serves(self, service: Service) -> None:
        service.train()
        service.train(FakeTrain(promote=False))
        log_runs(service.database, 3)
        service.client.post(PATH)
        log_runs(service.database, 2)
        found = service.get()
        assert [(item["version"], item["state"]) for item in found["items"]] == [
            (3, "queued"),
            (2, "kept"),
            (1, "serving"),
        ]
        assert (found["serving"], found["schedule"]["queued"], found["schedule"]["runs_since_last"]) == (1, 3, 2)
        assert found["items"][2]["figures"]["source"]["by_group"] == {
            "megatron": {
                "rows": 30,
                "median_error": 0.04,
                "analytical_median_error": 0.07,
                "under_rate": 0.03,
                "overshoot": 0.2,
            }
        }
        assert "report" not in found["items"][2]

    def test_pages(self, service: Service) -> None:
        for _ in range(3):
            service.train()
        first = service.get(limit=2)
        second = service.get(limit=2, cursor=first["next_cursor"])
        assert [item["version"] for item in first["items"] + second["items"]] == [3, 2, 1]
        assert second["next_cursor"] is None

    def test_a_cursor_of_another_list_is_refused(self, service: Service) -> None:
        from datetime import UTC, datetime

        from app.pagination import encode_cursor

        for position in ("01900000-0000-7000-8000-000000000000", "9" * 40, "²"):
            cursor = encode_cursor((datetime(2026, 12, 1, tzinfo=UTC), position))
            assert service.client.get(PATH, params={"cursor": cursor}).status_code == 422


class TestPromote:
    def test_back_to_an_older_version(self, service: Service) -> None:
        service.train()
        service.train()
        answer = service.client.post(f"{PATH}/1/promote")
        assert (answer.status_code, answer.json()["state"]) == (200, "serving")
        assert states(service.database) == {1: "serving", 2: "archived"}
        assert service.client.post(f"{PATH}/1/promote").json() == answer.json()

    def test_one_that_the_gate_refused(self, service: Service) -> None:
        service.train()
        service.train(FakeTrain(promote=False))
        assert service.client.post(f"{PATH}/2/promote").status_code == 200
        assert states(service.database) == {1: "archived", 2: "serving"}

    def test_no_such_version(self, service: Service) -> None:
        assert service.client.post(f"{PATH}/1/promote").status_code == 404

    def test_one_that_is_purged_meanwhile_leaves_the_one_that_serves(self, service: Service) -> None:
        service.train(FakeTrain(promote=False))
        service.train()

        def purge(*_: object, **__: object) -> None:
            with service.database.write() as session:
                MemoryModelRepository(session).purge(utc_now())

        models = MemoryModelService(service.database, service.settings, wake=lambda _: None, why_refused=purge)
        with pytest.raises(MemoryModelNotFound):
            models.promote(1)
        assert states(service.database) == {2: "serving"}

    def test_one_without_a_model(self, service: Service) -> None:
        def fail(_: object) -> None:
            raise ValueError

        service.train()
        service.train(FakeTrain(during=fail))
        service.client.post(PATH)
        for version, state in ((2, "failed"), (3, "queued")):
            answer = service.client.post(f"{PATH}/{version}/promote")
            assert (answer.status_code, answer.json()["type"]) == (
                409,
                "urn:paraplan:problem:memory-model-cannot-serve",
            )
            assert state in answer.json()["detail"]
        assert service.get()["serving"] == 1


class TestRefusedArtifact:
    """With the real check of what is stored."""

    @pytest.fixture
    def checked(self, settings: Settings) -> Iterator[Service]:
        app = create_app(settings)
        with TestClient(app) as client:
            yield Service(app, settings, client)

    def test_one_that_is_no_model_is_not_promoted(self, checked: Service) -> None:
        checked.train()
        checked.train(FakeTrain(promote=False, blob=b"not a model"))
        answer = checked.client.post(f"{PATH}/2/promote")
        assert answer.status_code == 409
        assert "not an artefact of this service" in answer.json()["detail"]
        assert states(checked.database) == {1: "serving", 2: "kept"}

    def test_one_that_was_changed_in_the_table_is_not_promoted(self, checked: Service) -> None:
        checked.train()
        checked.train(FakeTrain(promote=False))
        with checked.database.write() as session:
            MemoryModelRepository(session).change(2, blob=b"a modem")
        answer = checked.client.post(f"{PATH}/2/promote")
        assert answer.status_code == 409
        assert "hash" in answer.json()["detail"]
        assert checked.get()["serving"] == 1


def test_keys_and_scopes(service: Service) -> None:
    from app.services.api_keys import create_key

    key = create_key(service.database, "reader", ["read"], None)
    headers = {"X-API-Key": key}
    assert service.client.get(PATH).status_code == 401
    assert service.client.get(PATH, headers=headers).status_code == 200
    for path in (PATH, f"{PATH}/1/promote"):
        assert service.client.post(path).status_code == 401
        assert service.client.post(path, headers=headers).status_code == 403
