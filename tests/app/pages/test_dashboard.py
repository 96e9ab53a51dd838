"""Optuna's dashboard: forwarded where it is installed, read-only, behind the same key; else a page that says how."""

from __future__ import annotations

import optuna
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.db.session import Database
from app.db.study_storage import StudyStorage
from app.main import create_app
from app.pages import dashboard
from app.services.api_keys import create_key
from app.settings import Settings


def test_shows_the_studies_of_the_service(client: TestClient, settings: Settings) -> None:
    database = Database(settings.database_url)
    storage = StudyStorage(database)
    optuna.create_study(study_name="measured", storage=storage.open())
    answer = client.get("/api/studies")
    assert [study["study_name"] for study in answer.json()["study_summaries"]] == ["measured"]
    for path in ("/dashboard", "/dashboard/studies/1", "/static/bundle.js"):
        assert client.get(path).status_code == 200
    assert client.get("/static/docs.js").status_code == 200
    storage.dispose()
    database.dispose()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/api/studies", "/api/studies/1", "/dashboard", "/api/trials/1/tell"])
def test_changes_nothing(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path, json={}).status_code == 405


@pytest.mark.parametrize("path", ["/dashboard", "/api/studies", "/csv/1", "/static/bundle.js"])
def test_needs_a_key(client: TestClient, http_app: FastAPI, path: str) -> None:
    key = create_key(http_app.state.database, "person", ["read"], None)
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"X-API-Key": key}).status_code in (200, 404)


def test_without_the_extra_a_page_says_how(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(dashboard, "is_installed", lambda: False)
    with TestClient(create_app(settings)) as client:
        assert "paraplan[dashboard]" in client.get("/dashboard").text
        assert client.get("/api/studies").status_code == 404
