"""Trainings without learning, and runs without measurements, for tests of what happens around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from app.db.base import new_id, utc_now
from app.db.models import Job, MemoryModel, Run
from app.db.session import Database
from app.repositories.jobs import RETRAIN_JOB, JobRepository
from app.repositories.memory_models import MemoryModelRepository
from app.services.training import Software, Trained, TrainingSet

SOFTWARE = Software("features-1", {"scikit-learn": "1.9.1"})
GROUPING: dict[str, Any] = {
    "groups": 2,
    "rows": 40,
    "median_error": 0.05,
    "analytical_median_error": 0.08,
    "under_rate": {"0.5": 0.5, "0.9": 0.1, "0.95": 0.04},
    "overshoot": 0.3,
    "by_group": {
        "megatron": {
            "rows": 30,
            "median_error": 0.04,
            "analytical_median_error": 0.07,
            "under_rate": 0.03,
            "overshoot": 0.2,
            "formulas_alone": 0.0,
        }
    },
}
REPORT: dict[str, Any] = {
    "runs": 538,
    "memory_rows": 214,
    "out_of_memory": 13,
    "step_times": 451,
    "skipped": {"records": 1, "reasons": {"unknown GPU": 1}},
    "candidate": {"own_run": None, "model_shape": GROUPING, "source": GROUPING},
    "serving": None,
    "learning_curve": [],
    "step_time": {"own_runs": 10, "by_family": {}},
}


class FakeTrain:
    """Notes what it is given and answers a model of these bytes. `during` is called in the middle."""

    def __init__(
        self,
        *,
        promote: bool = True,
        blob: bytes = b"a model",
        during: Callable[[TrainingSet], None] = lambda _: None,
    ) -> None:
        self.sets: list[TrainingSet] = []
        self._promote = promote
        self._blob = blob
        self._during = during

    def __call__(self, runs: TrainingSet, *, version: int, now: datetime) -> Trained:
        self.sets.append(runs)
        self._during(runs)
        return Trained(
            blob=self._blob,
            software=SOFTWARE,
            runs=len(runs.records),
            report=REPORT,
            promote=self._promote,
            reasons=("as told",),
        )


def log_runs(database: Database, count: int) -> list[str]:
    """Rows in the order of their ids; answers these."""
    ids = [new_id() for _ in range(count)]
    with database.write() as session:
        session.add_all(
            Run(
                id=run_id,
                key=run_id,
                content_sha256="0" * 64,
                record={"key": run_id},
                framework="megatron-lm",
                gpu="h100-sxm5-80gb",
                cluster="prod-a",
                out_of_memory=False,
                created_at=utc_now(),
            )
            for run_id in sorted(ids)
        )
    return sorted(ids)


def model_of(database: Database, version: int) -> MemoryModel:
    with database.read() as session:
        model = MemoryModelRepository(session).get(version)
    assert model is not None
    return model


def states(database: Database) -> dict[int, str]:
    """Where each version stands."""
    with database.read() as session:
        return {model.version: model.state for model in MemoryModelRepository(session).page(limit=99, before=None)}


def training_jobs(database: Database) -> Sequence[Job]:
    """Jobs that train, oldest first."""
    with database.read() as session:
        return session.query(Job).filter(Job.kind == RETRAIN_JOB).order_by(Job.id).all()


def waiting_jobs(database: Database) -> Sequence[str]:
    with database.read() as session:
        return JobRepository(session).queued()
