"""Stored versions of what was learned, of known content: all they have learned is how fast some clusters are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from app.db.base import utc_now
from app.db.models import MemoryModel, ModelState, ModelTrigger
from app.db.session import Database
from app.repositories.memory_models import MemoryModelRepository
from cost_models.learned import SCHEMA, LearnedCorrections, dump, train, training_runs
from cost_models.learned.step_time import TimeFactor, TimeFactors
from cost_models.strategy import FRAMEWORKS


def version_of(factors: Mapping[tuple[str, str], float] | None = None, *, version: int = 1) -> LearnedCorrections:
    """`factors` on the step time by cluster (`Cluster.identity`) and framework."""
    by_group = {
        (cluster, FRAMEWORKS.index(framework)): TimeFactor(float(np.log(factor)), 0.05, 8)
        for (cluster, framework), factor in (factors or {}).items()
    }
    nothing = train(training_runs(()), version=version, now=utc_now())
    return replace(nothing, times=TimeFactors(by_group, between=0.2, within=0.1))


def store_version(
    database: Database, version: int, model: LearnedCorrections, *, serving: bool = True, corrupted: bool = False
) -> None:
    """Insert a version as a training leaves it; `corrupted`: with a byte that has changed since."""
    blob = dump(model)
    stored = blob[:-1] + bytes([blob[-1] ^ 1]) if corrupted else blob
    with database.write() as session:
        models = MemoryModelRepository(session)
        models.add(
            MemoryModel(
                version=version,
                state=ModelState.KEPT,
                trigger=ModelTrigger.REQUEST,
                created_at=utc_now(),
                trained_at=utc_now(),
                schema=SCHEMA,
                blob=stored,
                blob_sha256=hashlib.sha256(blob).hexdigest(),
            )
        )
        if serving:
            models.promote(version, at=utc_now())


def promote(database: Database, version: int) -> None:
    """As by hand."""
    with database.write() as session:
        MemoryModelRepository(session).promote(version, at=utc_now())
