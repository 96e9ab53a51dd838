"""Workers that are killed, frozen or stopped in the middle of a search: it still ends, and once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from app.db.models import Status
from app.db.session import Database
from app.settings import Settings
from tests.integration.workers import REAL_WORKER, Client, worker

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what the lease contract has shown to be the same on both: processes take their time."""


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, lease_seconds=1.0, heartbeat_seconds=0.1, worker_trains=False)


@pytest.fixture
def client(database: Database, settings: Settings) -> Iterator[Client]:
    client = Client(database, settings)
    yield client
    client.queue.close()


def test_a_killed_worker_is_replaced_and_the_search_goes_on_where_it_was(client: Client, settings: Settings) -> None:
    search_id = client.searches.create({"steps": 8, "step_seconds": 0.1}, labels={}).id
    with worker(settings) as first:
        client.await_trials(search_id, 3)
        first.kill()
        first.wait()
    before = len(client.trials(search_id))
    assert client.searches.state(search_id).status is Status.RUNNING
    with worker(settings):
        search = client.await_end(search_id)
    assert search.status == "succeeded"
    assert search.result is not None
    assert search.result["evaluated"] == 8 - before
    assert client.trials(search_id) == list(range(8))


def test_a_frozen_worker_that_was_replaced_writes_nothing_when_it_thaws(client: Client, settings: Settings) -> None:
    search_id = client.searches.create({"steps": 10, "step_seconds": 0.1}, labels={}).id
    with worker(settings) as frozen:
        client.await_trials(search_id, 3)
        frozen.send_signal(signal.SIGSTOP)
        with worker(settings):
            search = client.await_end(search_id)
            revision = client.searches.state(search_id).revision
            frozen.send_signal(signal.SIGCONT)
            # The thawed worker is at work again once it has done something else.
            other_id = client.searches.create({"steps": 1, "step_seconds": 0.3}, labels={}).id
            client.await_end(other_id)
            time.sleep(0.5)
    assert search.status == "succeeded"
    assert client.trials(search_id) == list(range(10))
    assert client.searches.state(search_id).revision == revision


@on_sqlite
def test_a_stopped_worker_gives_its_search_back_at_once(client: Client, settings: Settings) -> None:
    search_id = client.searches.create({"steps": 6, "step_seconds": 0.1}, labels={}).id
    with worker(settings) as first:
        client.await_trials(search_id, 2)
        first.send_signal(signal.SIGINT)
        assert first.wait() == 0
    with worker(settings):
        assert client.await_end(search_id).status == "succeeded"
    assert client.trials(search_id) == list(range(6))


@on_sqlite
def test_a_running_search_is_cancelled_and_keeps_its_trials(client: Client, settings: Settings) -> None:
    search_id = client.searches.create({"steps": 10_000, "step_seconds": 0.05}, labels={}).id
    with worker(settings):
        client.await_trials(search_id, 2)
        client.searches.cancel(search_id)
        search = client.await_end(search_id)
    assert search.status == "cancelled"
    assert search.result is not None
    assert len(client.trials(search_id)) == search.result["trials"] >= 2


@on_sqlite
def test_a_search_whose_message_was_lost_is_found(client: Client, settings: Settings) -> None:
    with worker(settings):
        # Once this one has run, the worker has looked for what waited when it started.
        client.await_end(client.searches.create({"steps": 1, "step_seconds": 0.0}, labels={}).id)
        client.searches._wake = lambda _: None
        search_id = client.searches.create({"steps": 1, "step_seconds": 0.0}, labels={}).id
        assert client.await_end(search_id).status == "succeeded"


REAL_REQUEST = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 8192, "global_batch_size": 64},
    "budget": {"trials": 250, "seconds": 600.0},
}


@on_sqlite
def test_a_real_search_survives_a_killed_worker(client: Client, settings: Settings) -> None:
    search_id = client.searches.create(REAL_REQUEST, labels={}).id
    with worker(settings, REAL_WORKER) as first:
        client.await_trials(search_id, 1)
        first.kill()
        first.wait()
    stored = client.trials(search_id)
    assert client.searches.state(search_id).status is Status.RUNNING
    with worker(settings, REAL_WORKER):
        search = client.await_end(search_id)
    assert search.status == "succeeded", search.error
    assert search.result is not None
    assert search.result["plans"]
    assert search.result["trials"] == 250
    numbers = client.trials(search_id)
    assert numbers == list(range(len(numbers)))
    assert len(stored) < len(numbers)
