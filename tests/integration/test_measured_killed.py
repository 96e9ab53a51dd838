"""Servers that are killed between an ask and its tell, and several at once: no trial is lost or given out twice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from app.db.base import utc_now
from app.db.models import Status
from app.db.session import Database
from app.repositories.searches import SearchRepository
from app.services.search_solver import solve_request
from app.services.searches import SearchService
from app.services.serving_model import Served
from tests.integration.workers import wait_for

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64},
    "mode": "measured",
    "budget": {"trials": 12},
}


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """The analytical answer; the search itself is another test's."""
    result = solve_request(REQUEST, past=(), report=lambda *_: None, cancelled=lambda: False, served=Served(None))
    return result.as_dict()


@pytest.fixture
def search_id(database: Database, answer: dict[str, Any]) -> str:
    created = SearchService(database, wake=lambda _: None, max_attempts=3).create(REQUEST, labels={})
    with database.write() as session:
        SearchRepository(session).finish(created.id, Status.SUCCEEDED, finished_at=utc_now(), result=answer)
    return created.id


@contextmanager
def server(database_url: str) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PARAPLAN_DATABASE_URL": database_url, "PARAPLAN_EMBEDDED_WORKER": "false"}
    process = subprocess.Popen([sys.executable, "-m", "app", "serve", "--port", str(port)], env=environment)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            wait_for(lambda: answers(client))
            yield client, process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx2.TransportError:
        return False


def ask(client: httpx2.Client, search_id: str) -> dict[str, Any]:
    response = client.post(f"/v1/searches/{search_id}/trials")
    assert response.status_code == 201, response.text
    trial: dict[str, Any] = response.json()
    return trial


def test_a_server_that_is_killed_between_ask_and_tell_loses_nothing(database_url: str, search_id: str) -> None:
    with server(database_url) as (client, process):
        asked = [ask(client, search_id) for _ in range(2)]
        process.kill()
        process.wait()
    with server(database_url) as (client, _):
        path = f"/v1/searches/{search_id}/trials/{asked[0]['trial']}"
        assert client.post(path, json={"measured": {"step_seconds": 9.5}}).status_code == 200
        third = ask(client, search_id)
        section = client.get(f"/v1/searches/{search_id}").json()["result"]["measured"]
    assert third["strategy"] not in [trial["strategy"] for trial in asked]
    assert [trial["state"] for trial in section["trials"]] == ["measured", "asked", "asked"]
    assert section["best"]["trial"] == asked[0]["trial"]


def test_two_servers_give_out_different_trials(database_url: str, search_id: str) -> None:
    with (
        server(database_url) as (first, _),
        server(database_url) as (second, _),
        ThreadPoolExecutor(4) as runners,
    ):
        asked = list(runners.map(lambda client: ask(client, search_id), [first, second] * 4))
    assert len({trial["trial"] for trial in asked}) == 8
    strategies = [trial["strategy"] for trial in asked]
    assert all(strategies.count(strategy) == 1 for strategy in strategies)
