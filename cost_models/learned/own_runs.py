"""What the runs that were logged to this service say about runs like them: kriging of what the formulas left over.

    y      log(measured / analytical) less the generic correction, of a logged run
    z      its features, each over its length (LENGTHS)
    k      exp(-|z - z'| / REACH)
    K      S (a0 + a1 k)            both of one framework
         + S (b0 + b1 k)            and of one cluster
         + noise                    on the diagonal
    S      1 where the same statistic was measured, else STATISTICS_ALIKE

The level (a0, b0) is what is off everywhere, k what is off near a run and comes to nothing far from all of them. With
no run the answer is 0, with few it is shrunk toward 0: the prior of every term has mean 0.
Source: kriging with an exponential covariance (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 2.2 and equation 4.18 at p = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from cost_models.learned.features import FEATURES, FRAMEWORK_COLUMN, STATISTICS
from cost_models.learned.runs import MemoryRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

MOST_ROWS: Final = 400
"""Of one framework: the latest of each cluster in turn. Each row of a table is compared with all of them."""
REACH: Final = 3.0
LEVEL, NEAR = 0.08**2, 0.10**2
"""Prior variances: a0 = b0 and a1 = b1. The formulas are off by about a tenth where they are off."""
NOISE: Final = 0.04**2
"""Prior variance of a single run."""
STATISTICS_ALIKE: Final = 0.8
_NORMAL: Final = NormalDist()


def _length(feature: str) -> float:
    if feature.endswith("/ peak"):
        return 0.3
    if feature == "log2 data_parallel_size":
        return 4.0
    return 2.0 if feature.startswith("log2") else 1.5


LENGTHS: Final = np.array([_length(feature) for feature in FEATURES if feature != "framework"])


@dataclass(frozen=True)
class OwnRuns:
    """Runs of one framework that were logged to this service, and what each of them adds to a prediction."""

    points: FloatColumn
    """(p, f) features over their lengths."""
    cluster: IntColumn
    """(p,) index into the model's clusters."""
    everywhere: FloatColumn
    """(3,) level of the framework, by STATISTICS."""
    on_cluster: FloatColumn
    """(c, 3) level of each cluster besides."""
    near: FloatColumn
    """(p, 3) weight of each point, by STATISTICS."""

    def predict(self, features: FloatColumn, cluster: int) -> FloatColumn:
        """(n, 3) log corrections of strategies on a cluster (-1: one that has logged nothing), by STATISTICS."""
        weights = NEAR * self.near * (1.0 + (self.cluster == cluster))[:, None]
        answer: FloatColumn = _closeness(_scaled(features), self.points) @ weights + self.everywhere
        if cluster >= 0:
            answer += self.on_cluster[cluster]
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
    """(m,) prediction of each used row from all others."""


def fit_own_runs(rows: MemoryRows, residual: FloatColumn, weights: FloatColumn, clusters: int) -> OwnFit:
    """Fit logged rows of one framework; `weights` (m,) divide the noise. At most MOST_ROWS rows: see `latest`.

    A run that ran out of memory has a part where the prediction from the others is below what it shows, and then as
    what it must have needed on average, given that it was more. Where it agrees with them it is left out: a lower bound
    that is kept anyway teaches nothing, and as a measured figure it would pull the prediction down.
    """
    points, cluster, statistic = _scaled(rows.features), rows.origin.cluster, rows.statistic
    alike = np.where(statistic[:, None] == statistic, 1.0, STATISTICS_ALIKE)
    together = 1.0 + (cluster[:, None] == cluster)
    prior = alike * together * (LEVEL + NEAR * _closeness(points, points))
    values, used = residual.copy(), ~rows.censored
    kriging = _Kriging.of(prior, NOISE / weights, values, used)
    if rows.censored.any():
        told = prior @ kriging.alpha
        used |= residual > told
        values[rows.censored] += _mean_excess(residual - told)[rows.censored]
        kriging = _Kriging.of(prior, NOISE / weights, values, used)
    of_statistic = np.where(statistic[:, None] == np.arange(len(STATISTICS)), 1.0, STATISTICS_ALIKE)
    per_point = kriging.alpha[:, None] * of_statistic
    on_cluster = np.zeros((clusters, len(STATISTICS)))
    np.add.at(on_cluster, cluster, LEVEL * per_point)
    own = OwnRuns(points[used], cluster[used], LEVEL * per_point.sum(axis=0), on_cluster, per_point[used])
    return OwnFit(own, used, values, _left_out(kriging, values, rows.origin.request))


def latest(rows: MemoryRows) -> IntColumn:
    """At most MOST_ROWS rows: the latest of each cluster, clusters in turn."""
    if len(rows) <= MOST_ROWS:
        return np.arange(len(rows))
    at = np.nan_to_num(rows.origin.at_seconds, nan=-np.inf)
    newest = np.lexsort((np.arange(len(rows)), -at))
    cluster = rows.origin.cluster[newest]
    turn = np.empty(len(rows), dtype=np.int64)
    for number in np.unique(cluster):
        members = cluster == number
        turn[members] = np.arange(int(members.sum()))
    chosen: IntColumn = np.sort(newest[np.argsort(turn, kind="stable")[:MOST_ROWS]])
    return chosen


def _scaled(features: FloatColumn) -> FloatColumn:
    scaled: FloatColumn = np.delete(features, FRAMEWORK_COLUMN, axis=1) / LENGTHS
    return scaled


def _closeness(one: FloatColumn, other: FloatColumn) -> FloatColumn:
    square = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * (one @ other.T)
    closeness: FloatColumn = np.exp(np.sqrt(np.maximum(square, 0.0)) * (-1.0 / REACH))
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

    @classmethod
    def of(cls, prior: FloatColumn, noise: FloatColumn, values: FloatColumn, used: BoolColumn) -> _Kriging:
        at = np.flatnonzero(used)
        inverse: FloatColumn = np.linalg.inv(prior[np.ix_(at, at)] + np.diag(noise[at]))
        alpha = np.zeros(len(values))
        alpha[at] = inverse @ values[at]
        return cls(at, inverse, alpha)


def _mean_excess(distance: FloatColumn) -> FloatColumn:
    """(m,) mean of y - L given y > L, of y normal with the deviation of a single run around L - `distance`."""
    deviation = np.sqrt(NOISE + NEAR)
    z = np.clip(distance / deviation, -6.0, 6.0)
    above = np.array([1.0 - _NORMAL.cdf(value) for value in z.tolist()])
    density = np.exp(-np.square(z) / 2.0) / np.sqrt(2.0 * np.pi)
    excess: FloatColumn = deviation * (density / above - z)
    return excess


def _left_out(kriging: _Kriging, values: FloatColumn, request: IntColumn) -> FloatColumn:
    """(m,) leave-request-out predictions without fitting again: y - (C^-1)_bb^-1 alpha_b for each block b of rows.

    Rows that are not used are not told apart from their values.
    """
    left_out = values.copy()
    of_used = request[kriging.used]
    for number in np.unique(of_used):
        block = np.flatnonzero(of_used == number)
        rows = kriging.used[block]
        left_out[rows] -= np.linalg.solve(kriging.inverse[np.ix_(block, block)], kriging.alpha[rows])
    return left_out
