"""The worker process: a Huey consumer with one thread, and a sweep over the leases.

One job at a time: a search keeps one core busy, so more of them at once take more workers, not more threads.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from huey import Huey, crontab
from huey.consumer import Consumer

from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.jobs.queue import JobQueue
from app.services.search_runs import Solve
from app.settings import Settings

log = structlog.get_logger(__name__)


class StoppingConsumer(Consumer):  # type: ignore[misc]  # huey is untyped
    """A consumer that ends the running job when it is told to stop, so that every signal ends it soon and cleanly."""

    def __init__(self, huey: Huey, *, before_stop: Callable[[], None], **options: Any) -> None:
        super().__init__(huey, **options)
        self._before_stop = before_stop

    def stop(self, graceful: bool = False) -> None:  # noqa: ARG002 (Huey's signature)
        """Give the running job back and wait for its thread."""
        self._before_stop()
        super().stop(graceful=True)


def new_worker_name() -> str:
    """A name for the owner of jobs: where it runs, for people, and a part that no other worker has."""
    return f"{socket.gethostname()}:{secrets.token_hex(4)}"


def run_worker(settings: Settings, solve: Solve, *, name: str) -> None:
    """Work until a signal says stop. Must be called in the main thread of its process."""
    database = Database(settings.database_url)
    executor = JobExecutor(database, settings, solve, worker=name)
    queue = JobQueue(settings.effective_queue_url, run=executor.execute)
    _register_schedule(queue, executor, settings)
    stopped = threading.Event()

    def before_stop() -> None:
        stopped.set()
        executor.stop()

    consumer = StoppingConsumer(
        queue.huey,
        before_stop=before_stop,
        workers=1,
        initial_delay=settings.queue_poll_seconds,
        max_delay=settings.queue_poll_seconds,
        backoff=1.0,
    )
    # What an earlier worker gave back when it stopped; what it left behind when it was killed is for the sweep.
    _wake(queue, executor.queued())
    threading.Thread(
        target=_sweep_until, args=(stopped, queue, executor, settings.lease_seconds), name="sweep", daemon=True
    ).start()
    log.info("worker_started", worker=name, pid=os.getpid())
    consumer.run()
    queue.close()
    database.dispose()
    log.info("worker_stopped", pid=os.getpid())


def _register_schedule(queue: JobQueue, executor: JobExecutor, settings: Settings) -> None:
    minute, hour, day, month, weekday = settings.purge_cron.split()
    when = crontab(minute=minute, hour=hour, day=day, month=month, day_of_week=weekday)

    def purge() -> None:
        job_id = executor.schedule_purge(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M"))
        if job_id is not None:
            executor.execute(job_id)

    queue.huey.periodic_task(when, name="purge")(purge)


def _sweep_until(stopped: threading.Event, queue: JobQueue, executor: JobExecutor, lease_seconds: float) -> None:
    # Not at once: after an outage of the database every lease looks silent, and its worker is about to renew it.
    wait_seconds = lease_seconds
    while not stopped.wait(wait_seconds):
        wait_seconds = lease_seconds / 2
        try:
            _wake(queue, executor.sweep())
        except Exception:
            # Whatever is away, database or queue, may be back at the next sweep; without sweeps nothing is recovered.
            log.exception("sweep_failed")


def _wake(queue: JobQueue, job_ids: Sequence[str]) -> None:
    # While messages wait, these jobs most likely have theirs; repeating them would only lengthen the queue.
    if job_ids and queue.is_empty():
        for job_id in job_ids:
            queue.wake(job_id)
