"""Learns from runs with `cost_models.learned`, and judges what was learned.

That package is imported when it is used: scikit-learn takes a second and a hundred megabytes, and most processes that
know of trainings never do one.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import structlog

from app.repositories.memory_models import Artifact
from app.services.training import Software, Trained, TrainingSet

if TYPE_CHECKING:
    from cost_models.learned import LearnedCorrections

log = structlog.get_logger(__name__)


def software() -> Software:
    """What this process would write and can read."""
    from cost_models import learned

    return Software(learned.SCHEMA, learned.libraries())


def train_on_runs(runs: TrainingSet, *, version: int, now: datetime) -> Trained:
    """Train a version, evaluate it on runs it has not seen beside what the champion knows, decide."""
    from cost_models import learned

    priced = learned.training_runs(runs.records)
    known = np.arange(len(runs.records)) < runs.known if _champion_serves(runs) else None
    model = learned.train(priced, version=version, now=now)
    report = learned.evaluate(priced, model, now=now, known=known)
    decision = learned.decide(report)
    blob = learned.dump(model)
    learned.load(blob, version=version)  # what cannot be read back fails here, not where it is to serve
    return Trained(
        blob=blob,
        software=software(),
        runs=len(priced),
        report=report,
        promote=decision.promote,
        reasons=decision.reasons,
    )


def load_artifact(artifact: Artifact, *, version: int) -> LearnedCorrections:
    """Read a stored model; raises `cost_models.learned.ArtifactRefused` for one that is corrupted or foreign."""
    from cost_models import learned

    if hashlib.sha256(artifact.blob).hexdigest() != artifact.sha256:
        raise learned.ArtifactRefused("the stored bytes do not have the hash that was stored with them")
    return learned.load(artifact.blob, version=version)


def why_refused(artifact: Artifact, *, version: int) -> str | None:
    """Why a stored model may not serve; None if it may."""
    from cost_models import learned

    try:
        load_artifact(artifact, version=version)
    except learned.ArtifactRefused as refused:
        return str(refused)
    return None


def _champion_serves(runs: TrainingSet) -> bool:
    """Whether there is a champion to be compared with: one that is refused serves nobody."""
    champion = runs.champion
    if champion is None:
        return False
    if (reason := why_refused(champion.artifact, version=champion.version)) is not None:
        log.warning("champion_refused", memory_model_version=champion.version, reason=reason)
        return False
    return True
