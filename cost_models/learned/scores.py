"""What a model says of rows that it has not seen, and how far it is off: plain figures, ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.learned.bounds import LEVELS, balanced_weights
from cost_models.learned.peak_memory import MemoryModel
from cost_models.learned.runs import MemoryRows
from cost_models.learned.step_time import weighted_median
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

CONFIDENCES: Final = (0.5, 0.9, 0.95)
RISKS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Of the reliability table."""
BOUND_AT: Final = 0.95
FEWEST_ROWS: Final = 20
"""Of a group that is listed by itself."""


@dataclass(frozen=True)
class Scored:
    """m rows and what a model that has not seen their group says of them."""

    rows: MemoryRows
    log_correction: FloatColumn
    quantiles: FloatColumn
    """(m, k) log(measured / corrected) at LEVELS."""
    analytical_only: BoolColumn
    """(m,) no runs stand behind the bound."""

    @property
    def miss(self) -> FloatColumn:
        """(m,) log(measured / corrected); of runs that ran out of memory the least that it can be."""
        return self.rows.log_ratio - self.log_correction

    def bound(self, confidence: float) -> FloatColumn:
        """(m,) log of the factor on the corrected figure."""
        return np.array([np.interp(confidence, LEVELS, row) for row in self.quantiles])


def score(model: MemoryModel, rows: MemoryRows) -> Scored:
    """Rows as the model would answer them."""
    correction, analytical = np.empty(len(rows)), np.empty(len(rows), dtype=np.bool_)
    quantiles = np.empty((len(rows), len(LEVELS)))
    for cluster in np.unique(rows.origin.cluster).tolist():
        at = np.flatnonzero(rows.origin.cluster == cluster)
        framework = rows.origin.framework[at]
        correction[at] = model.predict(rows.features[at], framework, cluster)[np.arange(len(at)), rows.statistic[at]]
        for number in np.unique(framework).tolist():
            of_framework = at[framework == number]
            quantiles[of_framework] = model.errors(number, cluster)
            analytical[of_framework] = model.basis(number, cluster) < 0
    return Scored(rows, correction, quantiles, analytical)


def joined(parts: list[Scored]) -> Scored:
    """All rows of all parts."""
    return Scored(
        rows=MemoryRows.joined([part.rows for part in parts]),
        log_correction=np.concatenate([part.log_correction for part in parts]),
        quantiles=np.concatenate([part.quantiles for part in parts]),
        analytical_only=np.concatenate([part.analytical_only for part in parts]),
    )


def figures(scored: Scored, group: IntColumn, names: tuple[str, ...]) -> dict[str, Any]:
    """Errors, coverage of the bound and its cost. Groups weigh the same; `group` (m,) is an index into `names`."""
    ran = ~scored.rows.censored
    weights = balanced_weights(group)
    # A run that ran out of memory is counted where it contradicts the bound; what it needed is not known.
    under = {confidence: scored.miss > scored.bound(confidence) for confidence in CONFIDENCES}
    known = ran | under[BOUND_AT]
    shares = weights * known / (weights * known).sum()
    at_bound, miss = scored.bound(BOUND_AT)[ran], scored.miss[ran]
    ratio, of_ran = scored.rows.log_ratio[ran], weights[ran] / weights[ran].sum()
    fixed = _quantile(ratio, of_ran, 1.0 - float((under[BOUND_AT][ran] * of_ran).sum()))
    errors, alone = np.abs(np.expm1(-miss)), np.abs(np.expm1(-ratio))
    return {
        "groups": len(np.unique(group)),
        "rows": len(group),
        "out_of_memory": int((~ran).sum()),
        "median_error": weighted_median(errors, of_ran),
        "analytical_median_error": weighted_median(alone, of_ran),
        "under_rate": {str(confidence): float((missed * shares).sum()) for confidence, missed in under.items()},
        "overshoot": float((np.expm1(at_bound - miss) * of_ran).sum()),
        "median_overshoot": weighted_median(np.expm1(at_bound - miss), of_ran),
        "fixed_margin": float(np.exp(fixed)),
        "fixed_margin_overshoot": float((np.expm1(fixed - ratio) * of_ran).sum()),
        "reliability": [
            {"probability": risk, "observed": float(((scored.miss > scored.bound(1.0 - risk)) * shares).sum())}
            for risk in RISKS
        ],
        "by_group": {
            names[number]: _of_group(scored, at)
            for number in np.unique(group).tolist()
            if (at := ran & (group == number)).sum() >= FEWEST_ROWS
        },
    }


def _of_group(scored: Scored, at: BoolColumn) -> dict[str, Any]:
    miss, ratio = scored.miss[at], scored.rows.log_ratio[at]
    bound = scored.bound(BOUND_AT)[at]
    return {
        "rows": int(at.sum()),
        "median_error": float(np.median(np.abs(np.expm1(-miss)))),
        "analytical_median_error": float(np.median(np.abs(np.expm1(-ratio)))),
        "under_rate": float(np.mean(miss > bound)),
        "overshoot": float(np.mean(np.expm1(bound - miss))),
        "formulas_alone": float(np.mean(scored.analytical_only[at])),
    }


def _quantile(values: FloatColumn, weights: FloatColumn, share: float) -> float:
    """The least value that this share of the weight is not above."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(reached, share - 1e-9)), len(values) - 1)])
