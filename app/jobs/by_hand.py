"""A training by hand, in this process: under the same lease as any other, so that never two run at once."""

from __future__ import annotations

from app.db.models import MemoryModel, ModelState, ModelTrigger
from app.db.session import Database
from app.jobs.executor import JobExecutor
from app.jobs.worker import new_worker_name
from app.repositories.memory_models import MemoryModelRepository
from app.services.retraining import Retraining
from app.services.search_solver import solve_request
from app.services.training import Train
from app.settings import Settings


class TrainingFailed(Exception):
    """No model came out; the message says why."""


def train_here(database: Database, settings: Settings, train: Train) -> MemoryModel:
    """Train the version that waits, or a new one; answers it with its report. Raises TrainingFailed."""
    asked = Retraining(database, max_attempts=settings.max_attempts).ask(ModelTrigger.COMMAND)
    JobExecutor(database, settings, solve_request, train, worker=new_worker_name()).execute(asked.job_id)
    with database.read() as session:
        models = MemoryModelRepository(session)
        model, running = models.get(asked.version), models.running_version()
    assert model is not None
    match model.state:
        case ModelState.FAILED:
            raise TrainingFailed(f"Version {model.version} failed: {model.error}")
        case ModelState.QUEUED:
            raise TrainingFailed(
                f"Version {running} is being trained; version {model.version} waits, and a worker will train it."
            )
        case ModelState.RUNNING:
            raise TrainingFailed(f"Version {model.version} is being trained by a worker.")
    return model
