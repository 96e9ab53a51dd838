"""Worker processes for tests, and clients that wait for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.db.models import Search
from app.db.session import Database
from app.jobs.queue import JobQueue
from app.repositories.searches import SearchRepository
from app.services.searches import SearchService
from app.settings import Settings

SLOW_WORKER = ("-m", "tests.integration.slow_worker")
REAL_WORKER = ("-m", "app", "worker")
GIVEN = {"database_url", "lease_seconds", "heartbeat_seconds", "worker_trains"}
"""Settings that a worker has from its test."""
GIVE_UP_SECONDS = 300.0
"""Not a limit on speed: only so that a search that never ends fails its test."""


class Client:
    """Creates searches as a server does, and watches them."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self.queue = JobQueue(settings.effective_queue_url)
        self.searches = SearchService(database, wake=self.queue.wake, max_attempts=settings.max_attempts)

    def trials(self, search_id: str) -> list[int]:
        with self._database.read() as session:
            return [body["number"] for body in SearchRepository(session).trials(search_id)]

    def await_trials(self, search_id: str, number: int) -> None:
        wait_for(lambda: len(self.trials(search_id)) >= number or self.searches.state(search_id).status.is_final)
        assert len(self.trials(search_id)) >= number, self.searches.get(search_id).error

    def await_end(self, search_id: str) -> Search:
        wait_for(lambda: self.searches.state(search_id).status.is_final)
        return self.searches.get(search_id)


def wait_for(condition: Callable[[], bool], *, every_seconds: float = 0.02) -> None:
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(every_seconds)


@contextmanager
def worker(settings: Settings, command: tuple[str, ...] = SLOW_WORKER) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; stopped at the end unless the test has ended it."""
    environment = os.environ | {
        f"PARAPLAN_{name.upper()}": str(value) for name, value in settings.model_dump(include=GIVEN).items()
    }
    process = subprocess.Popen([sys.executable, *command], env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.wait()
