"""The worker process that `serve` keeps beside itself: started with it, replaced when it dies, ended with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

import structlog

from app.db.migrate import SchemaMismatch
from app.db.session import DATABASE_AWAY, Database
from app.jobs.worker import new_worker_name, run_worker
from app.logs import configure_logging
from app.repositories.jobs import JobRepository
from app.services.search_solver import solve_request
from app.settings import Settings

log = structlog.get_logger(__name__)

RESTART_SECONDS = 0.5
STOP_SECONDS = 10.0
MISMATCH_EXIT_CODE = 3
MISMATCH_SECONDS = 10.0
"""Until a worker looks again at a database that is not of its version."""


@contextmanager
def embedded_worker(settings: Settings) -> Iterator[None]:
    """Keep a worker process running while the block runs."""
    keeper = _Keeper(settings)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()


class _Keeper:
    """Starts the process, waits for its end, starts it again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._keep, name="embedded-worker", daemon=True)

    def start(self) -> None:
        self._start_process()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._process.terminate()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.warning("worker_killed", pid=self._process.pid)
            self._process.kill()
            self._thread.join()

    def _spawn(self) -> BaseProcess:
        self._worker = new_worker_name()
        # Spawned, not forked: a fork would share the server's database connections and the locks of its threads.
        return multiprocessing.get_context("spawn").Process(
            target=_work_beside_parent, args=(self._settings, self._worker), name="paraplan-worker", daemon=True
        )

    def _keep(self) -> None:
        while True:
            self._process.join()
            is_mismatch = self._process.exitcode == MISMATCH_EXIT_CODE
            if self._stopping.wait(MISMATCH_SECONDS if is_mismatch else RESTART_SECONDS):
                return
            log.warning("worker_died", pid=self._process.pid, exit_code=self._process.exitcode)
            self._take_back_jobs()
            self._process = self._spawn()
            self._start_process()

    def _start_process(self) -> None:
        # The worker inherits the mask: Ctrl-C in a terminal reaches the whole group, and would end it with a traceback
        # while it still imports. It is ended by its parent, after the last request.
        resource_tracker.ensure_running()  # unblocks the signal when it starts, so it must run by now
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _take_back_jobs(self) -> None:
        # This worker is known to be dead, so nobody need wait until its lease runs out.
        database = Database(self._settings.database_url)
        try:
            with database.write() as session:
                JobRepository(session).take_back(self._worker)
        except DATABASE_AWAY:
            log.exception("take_back_failed", worker=self._worker)
        finally:
            database.dispose()


def _work_beside_parent(settings: Settings, name: str) -> None:
    # A terminal that is closed hangs up its whole group: again a matter of the parent.
    os.setsid()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    configure_logging(settings)
    try:
        run_worker(settings, solve_request, name=name)
    except SchemaMismatch:
        log.exception("worker_of_another_version")
        sys.exit(MISMATCH_EXIT_CODE)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns however the parent ended, kill -9 included
        os.kill(os.getpid(), signal.SIGTERM)
