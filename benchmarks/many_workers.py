"""How many searches a minute one, two and three workers end, each a process of its own.

Run with `python -m benchmarks.many_workers` from the root of the repository. `--database-url` and `--queue-url` name
servers to measure with, left out: SQLite files in a temporary directory; the database is migrated, and keeps what was
searched. A search is the example of the README with its default budget. A few of them come before the clock
starts, so that imports do not count. Workers that share cores share them: the cores are printed too. `--waiting`
takes searches that wait for a second and store ten blocks meanwhile: what queue and table allow, whatever the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.db import migrate
from app.db.models import Status
from app.db.session import Database
from app.jobs.queue import JobQueue
from app.services.searches import SearchService
from app.settings import Settings

REQUEST = Path("examples/llama-3-70b-64xh100.json")
WORKER = ("app", "worker")
WAITING: Mapping[str, Any] = {"steps": 10, "step_seconds": 0.1}
WAITING_WORKER = ("tests.integration.slow_worker",)
POLL_SECONDS = 0.02


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--database-url")
    arguments.add_argument("--queue-url", default="")
    arguments.add_argument("--searches", type=int, default=60)
    arguments.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    arguments.add_argument("--waiting", action="store_true")
    given = arguments.parse_args()
    request, module = (WAITING, WAITING_WORKER) if given.waiting else (json.loads(REQUEST.read_text()), WORKER)
    print(f"{os.cpu_count()} cores, {given.searches} searches")
    with tempfile.TemporaryDirectory(prefix="paraplan-") as directory:
        url = given.database_url or f"sqlite:///{directory}/paraplan.db"
        settings = Settings(database_url=url, queue_url=given.queue_url, worker_trains=False)
        database, queue = Database(settings.database_url), JobQueue(settings.effective_queue_url)
        migrate.upgrade(database.engine)
        searches = SearchService(database, wake=queue.wake, max_attempts=settings.max_attempts)
        for count in given.workers:
            with _workers(settings, count, module):
                _end(searches, request, 4 * count)
                seconds = _end(searches, request, given.searches)
            print(f"{count} workers: {60 * given.searches / seconds:6.0f} searches a minute")
        queue.close()
        database.dispose()


@contextmanager
def _workers(settings: Settings, count: int, module: Sequence[str]) -> Iterator[None]:
    environment = os.environ | {
        "PARAPLAN_DATABASE_URL": settings.database_url,
        "PARAPLAN_QUEUE_URL": settings.effective_queue_url,
        "PARAPLAN_WORKER_TRAINS": "false",
        "PARAPLAN_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", *module]
    processes = [subprocess.Popen(command, env=environment) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _end(searches: SearchService, request: Mapping[str, Any], count: int) -> float:
    """Search so many times; answers the seconds from the first request to the last end."""
    begin = time.perf_counter()
    waiting = [searches.create({**request, "seed": seed}, labels={}).id for seed in range(count)]
    while waiting:
        state = searches.state(waiting[0])
        if not state.status.is_final:
            time.sleep(POLL_SECONDS)
            continue
        if state.status != Status.SUCCEEDED:
            raise RuntimeError(f"search {waiting[0]} {state.status}")
        waiting.pop(0)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
