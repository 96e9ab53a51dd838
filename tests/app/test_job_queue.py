"""The queue carries ids, on SQLite, PostgreSQL and Redis, and no code."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from app.jobs.queue import JobQueue, JsonSerializer
from app.settings import Settings
from tests.databases import ENGINES


@pytest.fixture(params=[*ENGINES, pytest.param("redis", marks=pytest.mark.redis)])
def queue_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return Settings(queue_url=url).effective_queue_url if request.param == "redis" else url


def test_what_the_server_enqueues_the_worker_runs(queue_url: str) -> None:
    ran: list[str] = []
    server, worker = JobQueue(queue_url), JobQueue(queue_url, run=ran.append)
    server.wake("one")
    server.wake("two")
    assert worker.waiting() == 2
    while worker.waiting():
        worker.huey.execute(worker.huey.dequeue())
    assert ran == ["one", "two"]
    server.close()
    worker.close()


def test_many_processes_may_open_a_new_queue_at_once(queue_url: str) -> None:
    start = Barrier(8)

    def open_queue(_: int) -> None:
        start.wait()
        JobQueue(queue_url).close()

    with ThreadPoolExecutor(start.parties) as threads:
        list(threads.map(open_queue, range(start.parties)))


def test_messages_are_json(tmp_path: Path) -> None:
    queue = JobQueue(f"sqlite:///{tmp_path / 'queue.db'}")
    queue.wake("one")
    (message,) = queue.huey.storage.enqueued_items()
    assert b'["one"]' in message
    queue.close()


def test_a_pickle_is_not_loaded() -> None:
    with pytest.raises(ValueError, match=r"codec|Expecting"):
        JsonSerializer().deserialize(pickle.dumps("code"))


def test_a_queue_that_is_away_does_not_fail_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = JobQueue(f"sqlite:///{tmp_path / 'queue.db'}")

    def away(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(queue.huey.storage, "enqueue", away)
        queue.wake("one")
    assert queue.waiting() == 0
    queue.close()
