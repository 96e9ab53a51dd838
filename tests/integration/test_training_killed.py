"""Trainings run beside searches in a process of their own; killed or stopped, they still end, and once.

Each process takes a second to start: what the jobs' table shows as well, such as that a training which was given back
is taken up by the next worker, is tested there (`tests/app/test_training.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.session import Database
from app.settings import Settings
from tests.app.trainings import log_runs, states, training_jobs
from tests.integration.slow_training import GATE
from tests.integration.workers import Client, wait_for, worker

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds trainings through /proc")
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, lease_seconds=1.0, heartbeat_seconds=0.1)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Trainings last until this file is there."""
    path = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(path))
    return path


@pytest.fixture
def client(database: Database, settings: Settings) -> Iterator[Client]:
    client = Client(database, settings)
    yield client
    client.queue.close()


def trainings() -> set[int]:
    """Process ids of the trainings that run, those of ended tests included if there were any."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"tests.integration.slow_training" in path.read_bytes():
                found.add(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def attempts(database: Database) -> list[tuple[str, int]]:
    """State and attempts of each training; not of the slot that a new schedule begins with."""
    return [(job.state, job.attempt) for job in training_jobs(database) if job.slot is None]


def await_training(database: Database, *, attempt: int = 1) -> None:
    wait_for(lambda: states(database) == {1: "running"} and attempts(database) == [("running", attempt)])


def test_a_killed_training_is_tried_again_and_ends_once(database: Database, settings: Settings, gate: Path) -> None:
    before = trainings()
    with worker(settings):
        await_training(database)
        (pid,) = trainings() - before
        os.kill(pid, signal.SIGKILL)
        await_training(database, attempt=2)
        gate.touch()
        wait_for(lambda: states(database) == {1: "serving"})
    assert attempts(database) == [("succeeded", 2)]


@on_sqlite
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_training_ends_with_its_worker_and_is_given_back(
    database: Database, settings: Settings, gate: Path, how: signal.Signals
) -> None:
    before = trainings()
    with worker(settings) as first:
        await_training(database)
        first.send_signal(how)
        first.wait()
        wait_for(lambda: trainings() == before)
    assert (states(database), attempts(database)) == ({1: "running"}, [("running", 0)])


@on_sqlite
def test_beside_a_training_searches_end_and_the_next_training_waits_for_its_turn(
    database: Database, settings: Settings, client: Client, gate: Path
) -> None:
    with worker(settings):
        await_training(database)
        search_id = client.searches.create({"steps": 1, "step_seconds": 0.0}, labels={}).id
        log_runs(database, 10)
        assert client.await_end(search_id).status == "succeeded"
        wait_for(lambda: states(database) == {1: "running", 2: "queued"})
        gate.touch()
        wait_for(lambda: states(database) == {1: "archived", 2: "serving"})
    assert attempts(database) == [("succeeded", 1), ("succeeded", 1)]
