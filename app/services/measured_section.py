"""What the result of a measured search says of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app.db.models import MeasuredTrial
from app.schemas.search_trials import TrialOutcome
from cost_models.run_records import PEAKS
from search.measured_model import Told, best_measured
from search.measured_pool import MeasuredPool


def told_of(trial: MeasuredTrial) -> Told:
    """A stored trial, as the search reads it."""
    if trial.outcome is None:
        return Told(trial.candidate)
    outcome = TrialOutcome.model_validate(trial.outcome)
    if outcome.measured is None or outcome.measured.out_of_memory:
        return Told(trial.candidate, failed="error" if outcome.failed == "error" else "out_of_memory")
    allocated, reserved, device = (getattr(outcome.measured, name) for name in PEAKS)
    return Told(trial.candidate, outcome.measured.step_seconds, (allocated, reserved, device))


def measured_section(pool: MeasuredPool, trials: Sequence[MeasuredTrial], budget_trials: int) -> dict[str, Any]:
    """The section `measured` of a result."""
    told = [told_of(trial) for trial in trials]
    listed = [_listed(pool, trial, one) for trial, one in zip(trials, told, strict=True)]
    best = best_measured(pool, told)
    at = {one.candidate: index for index, one in enumerate(told)}
    return {
        "budget_trials": budget_trials,
        "candidates": len(pool),
        "asked": len(trials),
        "told": sum(not one.pending for one in told),
        "best": None if best is None else listed[at[best]],
        "gain": None if best is None else _gain(pool, told[at[best]], told),
        "correction": _correction(listed),
        "trials": listed,
    }


def ratio(measured: float | None, estimated: float | None) -> float | None:
    """Measured over estimated, where there are both."""
    return None if measured is None or not estimated else measured / estimated


def _listed(pool: MeasuredPool, trial: MeasuredTrial, told: Told) -> dict[str, Any]:
    estimated = float(pool.step_seconds[trial.candidate])
    peaks = zip(told.peaks_gib, pool.peaks_gib[trial.candidate], strict=True)
    peak, estimated_peak = next(((m, e) for m, e in reversed(list(peaks)) if m is not None), (None, None))
    return {
        "trial": trial.number,
        "state": told.failed or ("asked" if told.pending else "measured"),
        "run": trial.run_id,
        "strategy": pool.strategies[trial.candidate],
        "nodes": pool.nodes[trial.candidate],
        "asked_at": trial.asked_at,
        "told_at": trial.told_at,
        "estimated_step_seconds": estimated,
        "measured_step_seconds": told.step_seconds,
        "ratio": ratio(told.step_seconds, estimated),
        "peak_gib": peak,
        "estimated_peak_gib": estimated_peak,
    }


def _gain(pool: MeasuredPool, best: Told, told: Sequence[Told]) -> float | None:
    """Over the first analytical plan, which is candidate 0."""
    first = next((one for one in told if one.candidate == 0), None)
    if first is None or first.step_seconds is None or best.step_seconds is None:
        return None
    return 1.0 - best.step_seconds * pool.price[best.candidate] / (first.step_seconds * pool.price[0])


def _correction(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ran = [trial for trial in listed if trial["ratio"] is not None]
    by_framework: dict[str, list[float]] = {}
    for trial in ran:
        by_framework.setdefault(trial["strategy"]["framework"], []).append(trial["ratio"])
    peaks = [found for trial in ran if (found := ratio(trial["peak_gib"], trial["estimated_peak_gib"])) is not None]
    return {
        "factor": median(trial["ratio"] for trial in ran) if ran else None,
        "by_framework": {name: median(ratios) for name, ratios in sorted(by_framework.items())},
        "memory_factor": median(peaks) if peaks else None,
    }
