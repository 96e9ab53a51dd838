"""What a model says of rows that it has not seen, and how far it is off: plain figures, ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.corrections import STATISTICS
from cost_models.frameworks import FRAMEWORKS as BEHAVIOURS
from cost_models.learned.bounds import LEVELS, group_weights, normal_table
from cost_models.learned.features import FEATURES
from cost_models.learned.peak_memory import ROWS_TO_COUNT, MemoryModel
from cost_models.learned.rows import MemoryRows
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
    known: BoolColumn
    """(m,) runs of the framework or of the cluster stand behind the bound."""

    @property
    def miss(self) -> FloatColumn:
        """(m,) log(measured / corrected); of runs that ran out of memory the least that it can be."""
        return self.rows.log_ratio - self.log_correction

    def bound(self, confidence: float) -> FloatColumn:
        """(m,) log of the factor on the corrected figure."""
        return np.array([np.interp(confidence, LEVELS, row) for row in self.quantiles])


def score(model: MemoryModel, rows: MemoryRows) -> Scored:
    """Rows as the model would answer them."""
    correction, bases = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    device = rows.statistic == STATISTICS.index("device")
    eager = rows.features[:, FEATURES.index("eager attention")] > 0
    quantiles = np.empty((len(rows), len(LEVELS)))
    for cluster in np.unique(rows.origin.cluster).tolist():
        at = np.flatnonzero(rows.origin.cluster == cluster)
        framework = rows.origin.framework[at]
        correction[at] = model.predict(rows.features[at], framework, cluster)[np.arange(len(at)), rows.statistic[at]]
        kind = np.stack([framework, device[at], eager[at]], axis=1)
        for number, is_device, is_eager in np.unique(kind, axis=0).tolist():
            of_kind = at[(kind == (number, is_device, is_eager)).all(axis=1)]
            basis = model.basis(number, cluster, device=bool(is_device), eager=bool(is_eager))
            quantiles[of_kind], bases[of_kind] = model.errors(number, basis), basis
    known = np.array([basis not in model.anywhere.values() and basis >= 0 for basis in bases.tolist()], dtype=np.bool_)
    return Scored(rows, correction, quantiles, known)


def joined(parts: list[Scored]) -> Scored:
    """All rows of all parts."""
    return Scored(
        rows=MemoryRows.joined([part.rows for part in parts]),
        log_correction=np.concatenate([part.log_correction for part in parts]),
        quantiles=np.concatenate([part.quantiles for part in parts]),
        known=np.concatenate([part.known for part in parts]),
    )


def figures(scored: Scored, group: IntColumn, names: tuple[str, ...]) -> dict[str, Any]:
    """Errors, coverage of the bound and its cost; `group` (m,) is an index into `names`. Groups weigh as they do in
    the bound: hardly more for more rows, less for a few."""
    ran, weights = ~scored.rows.censored, group_weights(group, ROWS_TO_COUNT)
    # A run that ran out of memory is counted where it contradicts the bound; what it needed is not known.
    counted = weights * (ran | (scored.miss > scored.bound(BOUND_AT)))
    counted = counted / counted.sum()
    of_ran = weights[ran] / weights[ran].sum()
    bound, miss, ratio = scored.bound(BOUND_AT)[ran], scored.miss[ran], scored.rows.log_ratio[ran]
    fixed = _quantile(ratio, of_ran, 1.0 - float(((miss > bound) * of_ran).sum()))
    over = np.expm1(bound - miss)
    return {
        "groups": len(np.unique(group)),
        "rows": len(group),
        "out_of_memory": int((~ran).sum()),
        "median_error": weighted_median(np.abs(np.expm1(-miss)), of_ran),
        "analytical_median_error": weighted_median(np.abs(np.expm1(-ratio)), of_ran),
        "under_rate": {
            str(confidence): float(((scored.miss > scored.bound(confidence)) * counted).sum())
            for confidence in CONFIDENCES
        },
        "analytical_under_rate": {
            str(confidence): float(((scored.rows.log_ratio > stated_bound(scored.rows, confidence)) * counted).sum())
            for confidence in CONFIDENCES
        },
        "overshoot": float((over * of_ran).sum()),
        "overshoot_known_framework": _mean(over, of_ran * scored.known[ran]),
        "fixed_margin": float(np.exp(fixed)),
        "fixed_margin_overshoot": float((np.expm1(fixed - ratio) * of_ran).sum()),
        "fixed_margin_overshoot_known_framework": _mean(np.expm1(fixed - ratio), of_ran * scored.known[ran]),
        "reliability": [
            {"probability": risk, "observed": float(((scored.miss > scored.bound(1.0 - risk)) * counted).sum())}
            for risk in RISKS
        ],
        "by_group": {
            names[number]: group_figures(scored, at)
            for number in np.unique(group).tolist()
            if (at := ran & (group == number)).sum() >= FEWEST_ROWS
        },
    }


def stated_bound(rows: MemoryRows, confidence: float) -> FloatColumn:
    """(m,) log of the factor that the formulas' own error asks for."""
    stated = [np.interp(confidence, LEVELS, normal_table(behaviour.memory_error)) for behaviour in BEHAVIOURS]
    bound: FloatColumn = np.array(stated)[rows.origin.framework]
    return bound


def _mean(values: FloatColumn, weights: FloatColumn) -> float | None:
    return float((values * weights).sum() / weights.sum()) if weights.sum() > 0 else None


def group_figures(scored: Scored, at: BoolColumn) -> dict[str, Any]:
    """Of some rows of runs that ran."""
    miss, ratio = scored.miss[at], scored.rows.log_ratio[at]
    bound = scored.bound(BOUND_AT)[at]
    return {
        "rows": int(at.sum()),
        "median_error": float(np.median(np.abs(np.expm1(-miss)))),
        "analytical_median_error": float(np.median(np.abs(np.expm1(-ratio)))),
        "under_rate": float(np.mean(miss > bound)),
        "overshoot": float(np.mean(np.expm1(bound - miss))),
        "known_framework": float(np.mean(scored.known[at])),
    }


def _quantile(values: FloatColumn, weights: FloatColumn, share: float) -> float:
    """The least value that this share of the weight is not above."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(reached, share - 1e-9)), len(values) - 1)])
