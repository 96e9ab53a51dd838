"""A training as a worker sees it: read the runs, learn, judge, store; all of the outcome in one transaction.

Whoever is killed on the way leaves a version that is `running`, and nothing else: another worker begins it again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import structlog

from app.db.base import utc_now
from app.db.models import ModelState, Status
from app.db.session import DATABASE_AWAY, Database
from app.repositories.memory_models import MemoryModelRepository
from app.repositories.runs import RunRepository
from app.services.held_job import HeldJob, LeaseLost
from app.services.retraining import Software
from app.services.training_set import TrainingSet, read_training_set

log = structlog.get_logger(__name__)

NOT_COMPARED = "the version that serves was changed by hand during the training, so that nothing was compared with it"


@dataclass(frozen=True)
class Trained:
    """What came out of a training."""

    blob: bytes
    """The model, as `cost_models.learned.load` reads it."""
    software: Software
    runs: int
    """How many runs it was trained on."""
    report: Mapping[str, Any]
    promote: bool
    reasons: Sequence[str]
    """Of the decision, in words."""


class Train(Protocol):
    """Learns from runs and judges what was learned against the champion."""

    def __call__(self, runs: TrainingSet, *, version: int, now: datetime) -> Trained:
        """Answer the model with its report; what it raises fails the training."""
        ...


class TrainingRunner:
    """Works on the version of a job that this worker holds."""

    def __init__(self, database: Database, train: Train) -> None:
        self._database = database
        self._train = train

    def run(self, version: int, job: HeldJob) -> None:
        """Train a version to its end, or until the job is no longer ours. Raises LeaseLost and DATABASE_AWAY: after
        these the lease decides who tries again; and KeyboardInterrupt, after which the job is given back."""
        started = time.monotonic()
        try:
            self._begin(version, job)
            runs = read_training_set(self._database)
            if job.should_stop():
                self._give_back(job)
                return
            trained = self._train(runs, version=version, now=utc_now())
            self._end(version, job, runs, trained, time.monotonic() - started)
        except (LeaseLost, *DATABASE_AWAY):
            raise
        except KeyboardInterrupt:
            self._give_back(job)
            raise
        except Exception as error:
            log.exception("training_failed", memory_model_version=version)
            self._fail(version, job, f"An internal error ended the training: {type(error).__name__}.")

    def _begin(self, version: int, job: HeldJob) -> None:
        with self._database.write() as session:
            job.renew(session)
            newest = RunRepository(session).newest_id()
            MemoryModelRepository(session).change(version, state=ModelState.RUNNING, last_run_id=newest)

    def _give_back(self, job: HeldJob) -> None:
        with self._database.write() as session:
            job.release(session)

    def _end(self, version: int, job: HeldJob, runs: TrainingSet, trained: Trained, seconds: float) -> None:
        if job.should_stop():
            self._give_back(job)
            return
        promoted = self._store(version, job, runs, trained, seconds)
        log.info("training_ended", memory_model_version=version, promoted=promoted, seconds=round(seconds, 1))

    def _store(self, version: int, job: HeldJob, runs: TrainingSet, trained: Trained, seconds: float) -> bool:
        now = utc_now()
        with self._database.write() as session:
            job.renew(session)
            models = MemoryModelRepository(session)
            models.lock()
            serving = models.serving_version()
            compared = serving == (None if runs.champion is None else runs.champion.version)
            promote = trained.promote and compared
            models.change(
                version,
                state=ModelState.KEPT,
                trained_at=now,
                runs=trained.runs,
                last_run_id=runs.last_run_id,
                runs_sha256=runs.sha256,
                schema=trained.software.schema,
                libraries=dict(trained.software.libraries),
                report={**trained.report, "seconds": seconds},
                decision={
                    "promote": promote,
                    "reasons": [*trained.reasons, *([] if compared else [NOT_COMPARED])],
                    "compared_with": serving if compared else None,
                },
                blob=trained.blob,
                blob_sha256=hashlib.sha256(trained.blob).hexdigest(),
                error=None,
            )
            if promote:
                models.promote(version, at=now)
            job.finish(session, Status.SUCCEEDED)
        return promote

    def _fail(self, version: int, job: HeldJob, error: str) -> None:
        with self._database.write() as session:
            MemoryModelRepository(session).change(version, state=ModelState.FAILED, error=error)
            job.finish(session, Status.FAILED, error=error)
