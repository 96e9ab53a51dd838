"""Step time learned: one robust factor per cluster and framework, shrunk toward 1 while its runs are few.

    y    log(measured / predicted) of a run
    m    median of y over the runs of one cluster and framework, each weighed by how recent it is
    s2   variance of y within this cluster and framework, its own and the usual one
    t2   variance of m between them
    e2   s2 / n, what m is uncertain by
    factor = exp(m t2 / (t2 + e2) max(0, 1 - e2 / m2))      empirical Bayes: Efron and Morris, JASA 70, 1975

The last term is their positive-part rule for the cluster by itself: most clusters are as the formulas say and some are
far from it, so that a median within its own uncertainty is no reason to move, and one far beyond it is believed.

Both variances come from all runs there are; the factor of a cluster only from runs that were logged to this service:
others' published runs share a GPU and its links with the reader's cluster, not its network, drivers and software.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.learned.rows import TimeRows
from cost_models.strategy import FloatColumn, IntColumn

HALF_LIFE_SECONDS: Final = 180 * 86_400.0
"""Of a run's weight: a cluster's software is renewed about twice a year."""
LEAST_WEIGHT: Final = 0.1
"""Of an old run, so that a cluster that has no others is still known."""
_MEDIAN_TO_DEVIATION: Final = 1.4826
"""Standard deviation of a normal variable over its median absolute deviation."""
_MEDIAN_VARIANCE: Final = np.pi / 2
"""Variance of a median over that of a mean, of normal variables."""
_LEAST_DEVIATION: Final = 0.02
"""Of repeated runs: steady steps of one setting vary by about this from day to day."""
_SPREAD_RUNS: Final = 4.0
"""How many runs of its own the usual spread within a cluster is worth."""
_FEWEST_GROUPS: Final = 3
"""From which a variance between groups is taken."""
_USUAL_BETWEEN: Final = 0.2
"""Standard deviation between clusters where too few are known: of median errors of the time model over the families of
public runs (README, unseen rows)."""
_USUAL_WITHIN: Final = 0.1
"""The same within one cluster and framework."""


@dataclass(frozen=True)
class TimeFactor:
    """Of one cluster and framework."""

    log_factor: float
    deviation: float
    """Standard deviation of `log_factor`."""
    runs: int


@dataclass(frozen=True)
class TimeFactors:
    """All factors of a version, and the spread that they were shrunk by."""

    by_group: dict[tuple[str, int], TimeFactor]
    """By `Cluster.identity` and framework."""
    between: float
    """Standard deviation of log factors between clusters: what an unknown cluster is off by."""
    within: float
    """Standard deviation of single runs within one."""


def recency_weights(at_seconds: FloatColumn, now_seconds: float) -> FloatColumn:
    """(n,) 1 for a run of now, falling by half every HALF_LIFE_SECONDS; runs of unknown time as the oldest."""
    age = np.maximum(now_seconds - at_seconds, 0.0)
    weights: FloatColumn = np.maximum(np.where(np.isnan(age), 0.0, 0.5 ** (age / HALF_LIFE_SECONDS)), LEAST_WEIGHT)
    return weights


def fit_step_time(rows: TimeRows, clusters: tuple[str, ...], *, now_seconds: float) -> TimeFactors:
    """Factors of the clusters that logged runs with a step time."""
    origin = rows.origin
    weights = recency_weights(origin.at_seconds, now_seconds)
    # Runs that others published count as a group per family: their spread says how far clusters are apart.
    group = _numbers(origin.framework, origin.cluster, np.where(origin.logged, -1, origin.family))
    members = [np.flatnonzero(group == number) for number in range(int(group.max(initial=-1)) + 1)]
    medians = np.array([weighted_median(rows.log_ratio[at], weights[at]) for at in members])
    effective = np.array([_effective(weights[at]) for at in members])
    within = _within(rows.log_ratio, members, medians)
    between = _between(medians, within**2 * _MEDIAN_VARIANCE / effective)
    factors = {}
    for at, middle, count in zip(members, medians, effective, strict=True):
        if origin.logged[at[0]]:
            # Its own spread, as far as it has enough runs to show one.
            own = float(np.median(np.abs(rows.log_ratio[at] - middle))) * _MEDIAN_TO_DEVIATION
            spread = (_SPREAD_RUNS * within**2 + count * own**2) / (_SPREAD_RUNS + count)
            noise = spread * _MEDIAN_VARIANCE / count
            apart = max(0.0, 1.0 - noise / middle**2) if middle else 0.0
            share = between**2 / (between**2 + noise)
            key = (clusters[origin.cluster[at[0]]], int(origin.framework[at[0]]))
            factors[key] = TimeFactor(float(apart * share * middle), float(np.sqrt(share * noise)), len(at))
    return TimeFactors(factors, between, within)


def weighted_median(values: FloatColumn, weights: FloatColumn) -> float:
    """The value below and above which lies half of the weight; the mean of the two in between."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    low = int(np.searchsorted(reached, 0.5 - 1e-12))
    high = int(np.searchsorted(reached, 0.5 + 1e-12))
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def _numbers(*columns: IntColumn) -> IntColumn:
    if not len(columns[0]):
        return columns[0]
    _, number = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    numbers: IntColumn = number.reshape(-1)
    return numbers


def _effective(weights: FloatColumn) -> float:
    """How many runs of full weight a weighted set is worth (Kish)."""
    return float(weights.sum() ** 2 / np.square(weights).sum() * weights.max())


def _within(values: FloatColumn, members: list[IntColumn], medians: FloatColumn) -> float:
    """Robust, each group of two and more weighing the same."""
    spreads = [
        _MEDIAN_TO_DEVIATION * float(np.median(np.abs(values[at] - middle)))
        for at, middle in zip(members, medians, strict=True)
        if len(at) > 2
    ]
    return max(float(np.median(spreads)), _LEAST_DEVIATION) if spreads else _USUAL_WITHIN


def _between(medians: FloatColumn, noise: FloatColumn) -> float:
    """Spread of the medians around 1 beyond what their own uncertainty explains."""
    if len(medians) < _FEWEST_GROUPS:
        return _USUAL_BETWEEN
    # Squares and not a robust spread: most clusters are as the formulas say and some are far from it, and it is those
    # whose runs must be believed.
    excess = float(np.mean(np.square(medians) - noise))
    return float(np.sqrt(max(excess, _LEAST_DEVIATION**2)))
