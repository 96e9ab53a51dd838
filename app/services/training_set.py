"""What a training learns from: the published runs and the logged ones, and which of them the champion knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.db.session import Database
from app.repositories.memory_models import Artifact, MemoryModelRepository
from app.repositories.runs import RunRepository
from app.services.runs import logged_runs
from cost_models.published_runs import published_runs


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


def read_training_set(database: Database) -> TrainingSet:
    """Every run of this moment."""
    published = published_runs()
    known = 0
    with database.read() as session:
        logged = logged_runs(session)
        champion = _champion(session)
        if champion is not None:
            known = len(published)
            if champion.last_run_id is not None:
                known += len(logged.records) - RunRepository(session).count_after(champion.last_run_id)
    return TrainingSet(
        records=[*published, *logged.records],
        known=known,
        champion=champion,
        last_run_id=logged.last_run_id,
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
