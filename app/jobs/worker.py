"""The worker process: a Huey consumer with one thread, a thread that looks for lost jobs and for what is due, and a
process for a training.

One search at a time: it keeps one core busy, so more of them at once take more workers, not more threads.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from huey import Huey
from huey.consumer import Consumer

from app.db.migrate import SchemaMismatch, require_current
from app.db.session import Database
from app.jobs import training_process
from app.jobs.executor import JobExecutor
from app.jobs.queue import JobQueue
from app.jobs.schedule import Scheduler
from app.jobs.training_process import TrainingProcesses
from app.services.learner import software, train_on_runs
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


def run_worker(
    settings: Settings, solve: Solve, *, name: str, training_module: str = training_process.__name__
) -> None:
    """Work until a signal says stop. Must be called in the main thread of its process.

    Raises SchemaMismatch, also when another host's service migrates the database meanwhile.
    """
    database = Database(settings.database_url, connections=settings.database_connections)
    require_current(database.engine)
    executor = JobExecutor(database, settings, solve, train_on_runs, worker=name)
    trainings = TrainingProcesses(settings, worker=name, module=training_module)

    def run(job_id: str) -> None:
        if not executor.is_training(job_id):
            executor.execute(job_id)
        elif executor.may_train(job_id):
            trainings.start(job_id)

    queue = JobQueue(settings.effective_queue_url, run=run)
    stopped = threading.Event()

    def before_stop() -> None:
        stopped.set()
        executor.stop()

    consumer = StoppingConsumer(
        queue.huey,
        before_stop=before_stop,
        workers=1,
        **queue.delays(settings.queue_poll_seconds),
    )
    # What an earlier worker gave back when it stopped; what it left behind when it was killed is for the sweep.
    _wake(queue, executor.queued())
    scheduler = Scheduler(database, settings, software)
    sweep = _Sweep(stopped, database, queue, executor, scheduler, settings.lease_seconds)
    threading.Thread(target=sweep.run, name="sweep", daemon=True).start()
    log.info("worker_started", worker=name, pid=os.getpid())
    consumer.run()
    trainings.stop()
    queue.close()
    database.dispose()
    log.info("worker_stopped", pid=os.getpid())
    if sweep.mismatch is not None:
        raise sweep.mismatch


@dataclass
class _Sweep:
    """Looks, again and again, for jobs that nobody works on and for what is due."""

    stopped: threading.Event
    database: Database
    queue: JobQueue
    executor: JobExecutor
    scheduler: Scheduler
    lease_seconds: float
    mismatch: SchemaMismatch | None = None
    """Why this worker can work no more."""

    def run(self) -> None:
        """Until stopped."""
        self._try(self.executor.prepare)
        self._try(self._look_at_start)
        # Not at once: after an outage of the database every lease looks silent, and its worker is about to renew it.
        wait_seconds = self.lease_seconds
        while not self.stopped.wait(wait_seconds):
            wait_seconds = self.lease_seconds / 2
            self._try(self._look)

    def _try(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception:
            # Whatever is away, database or queue, may be back at the next sweep; without sweeps nothing is recovered.
            log.exception("sweep_failed")

    def _look_at_start(self) -> None:
        for job_id in [*self.scheduler.at_start(), *self.scheduler.due()]:
            self.queue.wake(job_id)

    def _look(self) -> None:
        try:
            require_current(self.database.engine)
        except SchemaMismatch as error:
            log.error("schema_mismatch", reason=str(error))
            self.mismatch = error
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.scheduler.due()  # these jobs wait now, and the sweep finds them with the others
        _wake(self.queue, self.executor.sweep())


def _wake(queue: JobQueue, job_ids: Sequence[str]) -> None:
    # While as many messages wait, these jobs most likely have theirs; repeating them would only lengthen the queue.
    if queue.waiting() < len(job_ids):
        for job_id in job_ids:
            queue.wake(job_id)
