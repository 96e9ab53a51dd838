"""What the runs that were logged to this service say about runs like them: kriging of what the formulas left over.

    y      log(measured / analytical) less the generic correction, of a logged run
    z      its features, each over its length (LENGTHS)
    k      exp(-|z - z'|^2 / 2)
    K      S (LEVEL + NEAR k) + noise on the diagonal
    S      1 where the same statistic was measured, else STATISTICS_ALIKE

One fit for each cluster and framework: runs of other clusters have no part in it, with one an unseen family of public
runs came out up to 2.6 times worse for those of the same framework elsewhere. The level is what is off everywhere, k
what is off near a run and comes to nothing far from all of them. With no run the answer is 0, with few it is shrunk
toward 0: the prior of every term has mean 0. Runs that agree with none like them have a larger noise (errors of
Student's t, by iterated weights): one job that shared its card spoils no neighbour.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equations 2.23 and 5.12. The figures are
round values from the middle of those that did well when each family of public runs was left out in turn
(benchmarks/learning.py); none is particular to a family, and a factor of 1.5 on any of them changes little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from cost_models.corrections import STATISTICS
from cost_models.learned.features import FEATURES
from cost_models.learned.rows import MemoryRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

MOST_ROWS: Final = 240
"""Of one cluster and framework, the latest: each row of a table is compared with all of them."""
LEVEL: Final = 0.07**2
NEAR: Final = 0.30**2
"""Prior variances: of all runs of a cluster together, and of runs that are alike."""
NOISE: Final = 0.02**2
"""Prior variance of a single run: an allocator's blocks."""
OUTLIER: Final = 0.05
"""Distance from what the others say at which a run begins to count less."""
FREEDOM: Final = 4.0
"""Degrees of freedom of Student's t."""
ROUNDS: Final = 3
"""Of weighing runs anew."""
SCALES: Final = (1.0, 0.35, 0.1, 0.03)
"""Of the prior's deviations, tried on the runs themselves: where the formulas are as good as the runs can tell, most of
what the prior allows would be learned from noise."""
PREFERENCE: Final = 0.01
"""For the scale 1: another must be better by this share of the error for each e-fold that it is away."""
STATISTICS_ALIKE: Final = 0.9
_NORMAL: Final = NormalDist()


def _length(feature: str) -> float:
    """Over which a correction changes. Not at all with the micro-batch itself: only as far as the parts' shares do, so
    that it does not take back what a larger micro-batch adds."""
    if feature in ("framework", "log2 micro_batch_size"):
        return np.inf
    if feature.endswith("/ peak"):
        return 0.24
    if feature == "log2 data_parallel_size":
        return 4.8
    if feature in ("log2 (1 + experts)", "latent attention", "layer norm", "gated feed-forward"):
        return 0.6
    return 2.4 if feature.startswith("log2") else 0.42


LENGTHS: Final = np.array([_length(feature) for feature in FEATURES])
_USED: Final = np.flatnonzero(np.isfinite(LENGTHS))


@dataclass(frozen=True)
class OwnRuns:
    """Runs of one cluster and framework that were logged to this service, and what each adds to a prediction."""

    points: FloatColumn
    """(p, f) features over their lengths."""
    level: FloatColumn
    """(3,) by STATISTICS."""
    near: FloatColumn
    """(p, 3) weight of each point, by STATISTICS."""

    def predict(self, features: FloatColumn) -> FloatColumn:
        """(n, 3) log corrections of strategies, by STATISTICS."""
        answer: FloatColumn = _closeness(_scaled(features), self.points) @ self.near + self.level
        return answer


@dataclass(frozen=True)
class OwnFit:
    """A fit, and what it says of each of its rows without the runs of the same request."""

    own: OwnRuns
    used: BoolColumn
    """(m,) all but runs out of memory that say nothing new."""
    values: FloatColumn
    """(m,) what was fitted: measured, or imputed."""
    left_out: FloatColumn
    """(m,) prediction of each used row from all others but those of its request."""
    shape_left_out: FloatColumn
    """(m,) and from those of other models."""


def fit_own_runs(rows: MemoryRows, residual: FloatColumn, weights: FloatColumn) -> OwnFit:
    """Fit logged rows of one cluster and framework; `weights` (m,) divide the noise. At most MOST_ROWS: see `latest`.

    A run that ran out of memory has a part where the prediction from the others is below what it shows, and then as
    what it must have needed on average, given that it was more. Where it agrees with them it is left out: a lower bound
    that is kept anyway teaches nothing, and as a measured figure it would pull the prediction down.
    """
    points, statistic, request = _scaled(rows.features), rows.statistic, rows.origin.request
    alike = np.where(statistic[:, None] == statistic, 1.0, STATISTICS_ALIKE)
    prior = alike * (LEVEL + NEAR * _closeness(points, points))
    noise, values, used = NOISE / weights, residual.copy(), ~rows.censored
    groups = (request, rows.origin.shape)
    scale, kriging = _best_scale(prior, noise, values, used, groups)
    if rows.censored.any():
        told = scale**2 * prior @ kriging.alpha
        used = used | (residual > told)
        values[rows.censored] += _mean_excess(residual - told)[rows.censored]
        kriging = _Kriging.of(scale**2 * prior, noise, values, used)
    of_statistic = np.where(statistic[:, None] == np.arange(len(STATISTICS)), 1.0, STATISTICS_ALIKE)
    per_point = scale**2 * kriging.alpha[:, None] * of_statistic
    own = OwnRuns(points[used], LEVEL * per_point.sum(axis=0), NEAR * per_point[used])
    left_out = [_left_out(kriging, values, group) for group in groups]
    return OwnFit(own, used, values, *left_out)


def latest(rows: MemoryRows) -> IntColumn:
    """At most MOST_ROWS rows, the latest; of equally late ones spread evenly."""
    if len(rows) <= MOST_ROWS:
        return np.arange(len(rows))
    at = np.nan_to_num(rows.origin.at_seconds, nan=-np.inf)
    oldest = np.partition(at, len(rows) - MOST_ROWS)[len(rows) - MOST_ROWS]
    newer, tied = np.flatnonzero(at > oldest), np.flatnonzero(at == oldest)
    spread = np.linspace(0, len(tied) - 1, MOST_ROWS - len(newer)).astype(np.int64)
    chosen: IntColumn = np.sort(np.concatenate([newer, tied[spread]]))
    return chosen


def _scaled(features: FloatColumn) -> FloatColumn:
    scaled: FloatColumn = features[:, _USED] / LENGTHS[_USED]
    return scaled


def _closeness(one: FloatColumn, other: FloatColumn) -> FloatColumn:
    square = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * (one @ other.T)
    closeness: FloatColumn = np.exp(np.maximum(square, 0.0) * -0.5)
    return closeness


@dataclass(frozen=True)
class _Kriging:
    """m rows, of which some are used."""

    used: IntColumn
    """(u,) rows."""
    inverse: FloatColumn
    """(u, u) of their covariance."""
    alpha: FloatColumn
    """(m,) weight of each row, 0 where it is not used."""

    weights: FloatColumn
    """(u,) what each counts, 1 unless it agrees with none like it."""

    @classmethod
    def of(
        cls,
        prior: FloatColumn,
        noise: FloatColumn,
        values: FloatColumn,
        used: BoolColumn,
        weights: FloatColumn | None = None,
    ) -> _Kriging:
        """Fit; `weights` (u,) are found by iteration where they are not given."""
        at = np.flatnonzero(used)
        covariance, said = prior[np.ix_(at, at)], values[at]
        rounds = ROUNDS if weights is None else 0
        counted = np.ones(len(at)) if weights is None else weights
        for left in range(rounds, -1, -1):
            inverse: FloatColumn = np.linalg.inv(covariance + np.diag(noise[at] / counted)).astype(np.float64)
            of_used = inverse @ said
            if left:
                off = of_used / np.diag(inverse) / OUTLIER
                counted = np.minimum((FREEDOM + 1.0) / (FREEDOM + np.square(off)), 1.0)
        alpha = np.zeros(len(values))
        alpha[at] = of_used
        return cls(at, inverse, alpha, counted)


def _best_scale(
    prior: FloatColumn, noise: FloatColumn, values: FloatColumn, used: BoolColumn, groups: Sequence[IntColumn]
) -> tuple[float, _Kriging]:
    """The one of SCALES with which runs that are left out, by each of the groupings, are predicted best, and its fit:
    the next run may be of a model that the cluster has run or of another."""
    best = (SCALES[0], _Kriging.of(prior, noise, values, used))
    least, weights = np.inf, best[1].weights
    if not used.any():
        return best
    for scale in SCALES:
        kriging = _Kriging.of(scale**2 * prior, noise, values, used, weights)
        off = [np.abs(values - _left_out(kriging, values, group))[used] for group in groups]
        error = float(np.mean(off)) * (1.0 + PREFERENCE * abs(np.log(scale)))
        if error < least:
            best, least = (scale, kriging), error
    return best


def _mean_excess(distance: FloatColumn) -> FloatColumn:
    """(m,) mean of y - L given y > L, of y normal with the deviation of a single run around L - `distance`."""
    deviation = np.sqrt(NOISE + NEAR)
    z = np.clip(distance / deviation, -6.0, 6.0)
    above = np.array([1.0 - _NORMAL.cdf(value) for value in z.tolist()])
    density = np.exp(-np.square(z) / 2.0) / np.sqrt(2.0 * np.pi)
    excess: FloatColumn = deviation * (density / above - z)
    return excess


def _left_out(kriging: _Kriging, values: FloatColumn, group: IntColumn) -> FloatColumn:
    """(m,) leave-group-out predictions without fitting again: y - (C^-1)_bb^-1 alpha_b for each block b of rows.

    Rows that are not used are not told apart from their values.
    """
    left_out = values.copy()
    of_used, alpha = group[kriging.used], kriging.alpha[kriging.used]
    off = alpha / np.diag(kriging.inverse)
    numbers, count = np.unique(of_used, return_counts=True)
    for number in numbers[count > 1]:
        block = np.flatnonzero(of_used == number)
        off[block] = np.linalg.solve(kriging.inverse[np.ix_(block, block)], alpha[block])
    left_out[kriging.used] -= off
    return left_out
