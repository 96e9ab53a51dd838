"""A process for each training, beside the worker that starts it.

So a search never waits for a training nor shares a core's turn with it (it runs at low priority), its memory goes back
when it ends, and being out of memory ends it and nothing else. The process is a worker for one job: it has the lease
itself. It ends with its parent, however that ends, and gives its job back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

import structlog

from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.logs import configure_logging
from app.services.search_solver import solve_request
from app.services.training import Train
from app.settings import Settings

log = structlog.get_logger(__name__)

NICENESS = 5
"""A third of the share of what users wait for, where a core is short (Linux: weight 335 to 1,024)."""
STOP_SECONDS = 5.0


class TrainingProcesses:
    """Starts them, one at a time. `module` is run with `-m` and calls `run_training`."""

    def __init__(self, settings: Settings, *, worker: str, module: str = __name__) -> None:
        self._settings = settings
        self._command = [sys.executable, "-m", module]
        # Under the worker's name, so that its jobs are taken back with the worker's when both were killed.
        self._worker = f"{worker}:training"
        self._process: subprocess.Popen[str] | None = None

    def start(self, job_id: str) -> None:
        """Train, unless a training of this worker runs: then a sweep will bring the job back."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process.communicate()
        self._process = subprocess.Popen([*self._command, job_id, self._worker], stdin=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        # Settings hold passwords, which neither arguments nor the environment should. The pipe stays open: its end is
        # how the process learns that this one has ended.
        self._process.stdin.write(self._settings.model_dump_json() + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Let the one that runs give its job back."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("training_killed", pid=process.pid)
            process.kill()
            process.communicate()


def run_training(train: Train) -> None:
    """Run the job that the arguments name; a signal or the parent's end gives it back."""
    job_id, worker = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says when to end
    settings = Settings.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    os.nice(NICENESS)
    configure_logging(settings)
    database = Database(settings.database_url)
    try:
        JobExecutor(database, settings, solve_request, train, worker=worker).execute(job_id)
    except KeyboardInterrupt:
        log.info("training_given_back", job_id=job_id)
    finally:
        database.dispose()


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (a signal handler's signature)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: giving the job back must not be interrupted
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through the buffer, whose lock a thread must not hold at the end
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from app.services.learner import train_on_runs

    run_training(train_on_runs)
