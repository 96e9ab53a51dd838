"""A training: what it learns from, what comes out, and how a worker does it: all of the outcome in one transaction.

Whoever is killed on the way leaves a version that is `running`, and nothing else: another worker begins it again.
"""

from __future__ import annotations

import hashlib
import json
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import structlog
from sqlalchemy.orm import Session

from app.db.base import utc_now
from app.db.models import MemoryModel, ModelState, Status
from app.db.session import DATABASE_AWAY, Database
from app.repositories.memory_models import Artifact, MemoryModelRepository
from app.repositories.runs import RunRepository
from app.services.held_job import HeldJob, LeaseLost
from app.services.runs import logged_runs
from cost_models.published_runs import published_runs

log = structlog.get_logger(__name__)

NOT_COMPARED = "the version that serves was changed by hand during the training, so that nothing was compared with it"


@dataclass(frozen=True)
class Champion:
    """The version that serves."""

    version: int
    artifact: Artifact
    last_run_id: str | None
    """The newest logged run that it knows."""


@dataclass(frozen=True)
class TrainingSet:
    """All runs there are: the published ones, then the logged ones in the order of their logging."""

    records: Sequence[Mapping[str, Any]]
    """RunRecords; logged ones with `logged_at`."""
    known: int
    """How many of them, from the first, the champion was trained on; 0 without a champion."""
    champion: Champion | None
    last_run_id: str | None
    """The newest logged run."""
    sha256: str
    """Of what the runs say: a training on the same set has nothing to find."""


@dataclass(frozen=True)
class Software:
    """What decides whether a stored model can be read: its features, and the minor version of scikit-learn."""

    schema: str
    libraries: Mapping[str, str]

    def reads(self, model: MemoryModel) -> bool:
        """Whether a version was trained by software like this."""
        return model.schema == self.schema and _minor(model.libraries or {}) == _minor(self.libraries)


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


def read_training_set(database: Database) -> TrainingSet:
    """Every run of this moment."""
    published = published_runs()
    known = 0
    with database.read() as session:
        logged = logged_runs(session)
        champion = _champion(session)
        if champion is not None:
            known = len(published) + bisect_right(logged.ids, champion.last_run_id or "")
    return TrainingSet(
        records=[*published, *logged.records],
        known=known,
        champion=champion,
        last_run_id=logged.ids[-1] if logged.ids else None,
        sha256=_sha256(published, logged.ids_sha256),
    )


def training_set_sha256(session: Session) -> str:
    """`TrainingSet.sha256` of this moment, without reading what the runs say."""
    return _sha256(published_runs(), RunRepository(session).ids_sha256())


def _sha256(published: Sequence[Mapping[str, Any]], logged_ids_sha256: str) -> str:
    # What is logged under an id does not change; what is published may, from one version of this software to the next.
    text = json.dumps(published, sort_keys=True) + logged_ids_sha256
    return hashlib.sha256(text.encode()).hexdigest()


def _champion(session: Session) -> Champion | None:
    models = MemoryModelRepository(session)
    version = models.serving_version()
    model = None if version is None else models.get(version)
    artifact = None if version is None else models.artifact(version)
    if model is None or artifact is None:
        return None
    return Champion(model.version, artifact, model.last_run_id)


def _minor(libraries: Mapping[str, str]) -> list[str]:
    return libraries.get("scikit-learn", "").split(".")[:2]
