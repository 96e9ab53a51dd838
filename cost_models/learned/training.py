"""A version from runs."""

from __future__ import annotations

from datetime import datetime

from cost_models.learned.corrections import LearnedCorrections
from cost_models.learned.peak_memory import fit_memory
from cost_models.learned.runs import TrainingRuns
from cost_models.learned.step_time import fit_step_time


def train(runs: TrainingRuns, *, version: int, now: datetime) -> LearnedCorrections:
    """Fit on all runs; `now` (with a time zone) is what their age is taken of."""
    seconds = now.timestamp()
    return LearnedCorrections(
        version=version,
        peak_memory=fit_memory(runs.memory, runs.clusters, now_seconds=seconds),
        times=fit_step_time(runs.time, runs.clusters, now_seconds=seconds),
    )
