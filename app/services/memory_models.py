"""Versions of what was learned, as clients see them: ask for one, list, read, promote.

MemoryModelError
├── MemoryModelNotFound   no version has this number
└── CannotServe           it has no model, or one that is refused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from app.cron import next_slot
from app.db.base import utc_now
from app.db.models import MemoryModel, ModelState, ModelTrigger
from app.db.session import Database
from app.repositories.memory_models import TRAINED, Artifact, MemoryModelRepository
from app.repositories.runs import RunRepository
from app.services.retraining import Retraining
from app.settings import Settings

LARGEST_VERSION = 2**31 - 1
"""That the column holds."""


class MemoryModelError(Exception):
    """Root of the errors of this service."""


class MemoryModelNotFound(MemoryModelError):
    """No version has this number."""

    def __init__(self, version: int | str) -> None:
        super().__init__(f"there is no version {version} of the memory model")


class CannotServe(MemoryModelError):
    """A version has no model, or one that is refused."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(f"version {version} of the memory model cannot serve: {reason}")


@dataclass(frozen=True)
class MemoryModelPage:
    """Some versions, newest first."""

    items: Sequence[MemoryModel]
    has_more: bool


@dataclass(frozen=True)
class TrainingSchedule:
    """When versions are trained."""

    cron: str | None
    next_slot: datetime | None
    after_runs: int | None
    runs_since_last: int
    """Logged since the last training began, or was asked for."""
    serving_version: int | None
    running_version: int | None
    queued_version: int | None


class WhyRefused(Protocol):
    """Loads a stored model."""

    def __call__(self, artifact: Artifact, *, version: int) -> str | None:
        """Why it may not serve; None if it may."""
        ...


class MemoryModelService:
    """Use cases on versions. `wake` tells the queue that a job waits; `why_refused` loads a stored model and says why
    it may not serve."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        wake: Callable[[str], None],
        why_refused: WhyRefused,
    ) -> None:
        self._database = database
        self._settings = settings
        self._wake = wake
        self._why_refused = why_refused
        self._retraining = Retraining(database, max_attempts=settings.max_attempts)

    def create(self) -> MemoryModel:
        """Ask for a training; answers the version that waits, if one does."""
        asked = self._retraining.ask(ModelTrigger.REQUEST)
        if asked.is_new:
            self._wake(asked.job_id)
        return self.get(asked.version)

    def get(self, version: int) -> MemoryModel:
        """A version with its report; raises MemoryModelNotFound."""
        with self._database.read() as session:
            model = MemoryModelRepository(session).get(version) if 0 < version <= LARGEST_VERSION else None
        if model is None:
            raise MemoryModelNotFound(version)
        return model

    def list(self, *, limit: int, before: int | None = None) -> MemoryModelPage:
        """A page of versions, newest first, all older than `before`."""
        with self._database.read() as session:
            found = MemoryModelRepository(session).page(limit=limit + 1, before=before)
        return MemoryModelPage(found[:limit], len(found) > limit)

    def schedule(self) -> TrainingSchedule:
        """When versions are trained, and which one serves now."""
        settings = self._settings
        with self._database.read() as session:
            models = MemoryModelRepository(session)
            newest = models.newest()
            return TrainingSchedule(
                cron=settings.retrain_cron or None,
                next_slot=next_slot(settings.retrain_cron, utc_now()) if settings.retrain_cron else None,
                after_runs=settings.retrain_after_runs or None,
                runs_since_last=RunRepository(session).count_after(newest.last_run_id if newest else None),
                serving_version=models.serving_version(),
                running_version=models.running_version(),
                queued_version=models.queued_version(),
            )

    def promote(self, version: int) -> MemoryModel:
        """Let a version serve, also an older one. It is loaded and checked first; raises MemoryModelNotFound,
        CannotServe."""
        model = self.get(version)
        if model.state == ModelState.SERVING:
            return model
        with self._database.read() as session:
            artifact = MemoryModelRepository(session).artifact(version)
        if model.state not in TRAINED or artifact is None:
            raise CannotServe(version, f"it is {model.state}")
        if (reason := self._why_refused(artifact, version=version)) is not None:
            raise CannotServe(version, reason)
        with self._database.write() as session:
            models = MemoryModelRepository(session)
            if version not in models.lock():
                raise MemoryModelNotFound(version)  # purged since it was read
            models.promote(version, at=utc_now())
        return self.get(version)
