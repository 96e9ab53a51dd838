"""What told runs say about the others: kriging of log(measured / estimated), of step time and of memory.

    y    log(measured / estimated step seconds) of a told run; prior mean 0
    s    shares of the parts (TIME_PARTS) in the estimated step, corrected by what is believed of them so far
    z    where a layout lies: log2 of its degrees and micro-batch, how it is sharded and recomputed
    K    LEVEL + FRAMEWORK [same framework] + s P s' + NEAR [same framework] exp(-|z - z'|^2 / 2), noise on the diagonal

To first order log(sum f_k s_k) is the sum of s_k log f_k: one unknown factor for each part of a step (a link slower
than its datasheet, a bubble that overlaps), one for each framework, one for the cluster, and what is left near layouts.
Memory is the same with the estimate's own error as the prior: a part of it is common to all, a part to a framework, a
part to like layouts; a run that ran out of memory says that the requirement was above the capacity, one that gave no
peak that it was below, each taken in as a truncated normal (assumed density filtering: Minka, A family of algorithms
for approximate Bayesian inference, 2001, section 3.2).

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equations 2.25 and 2.26.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np

from cost_models.results import TIME_PARTS
from cost_models.strategy import ACTIVATION_CHECKPOINTING, OFFLOADS, BoolColumn, FloatColumn, IntColumn
from search.measured_pool import MeasuredPool

LEVEL_DEVIATION: Final = 0.2
"""Between clusters: median errors of the time model over families of public runs (`learned.step_time`)."""
FRAMEWORK_DEVIATION: Final = 0.15
"""Of a framework within one cluster: between `learned.step_time`'s spreads within (0.1) and between (0.2) clusters."""
NEAR_DEVIATION: Final = 0.02
"""Of like layouts: what the spread within a cluster and framework leaves once parts have their factors."""
NOISE_DEVIATION: Final = 0.02
"""Of a run: steady steps of one setting vary by about this from day to day (`learned.step_time`)."""
_COMPUTE: Final = 0.05
_EXPOSED: Final = 0.5
"""Deviations of the log factors of a part: of computation beside the level and the framework; of communication, which
hangs on links and on what overlaps (a factor of 1.6 either way is usual)."""
PART_DEVIATIONS: Final = np.array(
    [
        {"forward": _COMPUTE, "backward": _COMPUTE, "recompute": _COMPUTE, "pipeline_bubble": 0.2}.get(name, _EXPOSED)
        for name in TIME_PARTS
    ]
)
MEMORY_SHARES: Final = (0.4, 0.3, 0.3)
"""Of the variance of a requirement: common to all, to a framework, to like layouts."""
MEMORY_NOISE: Final = 0.01
"""Deviation of a told peak: an allocator's blocks."""
NOTHING_RAN: Final = 0.5
"""While nothing has run, a plan is worth what it saves of a step that takes 65 % longer than the best may."""
CAREFUL_RUNS: Final = 3
"""Of plans that fit at the confidence asked for, before one is risked that the runs must show to fit."""
EVEN_ODDS: Final = 0.5
ROUNDS: Final = 3
"""Of correcting the shares by what the runs say."""
_NORMAL: Final = NormalDist()
_LENGTHS: Final = {
    "tensor_parallel_size": 2.0,
    "context_parallel_size": 2.0,
    "pipeline_parallel_size": 2.0,
    "virtual_pipeline_size": 2.0,
    "expert_parallel_size": 2.0,
    "data_parallel_replicate_size": 4.0,
    "micro_batch_size": 2.0,
}
"""Over which a correction changes, in doublings."""

Failure = Literal["out_of_memory", "error"]


@dataclass(frozen=True)
class Told:
    """What is known of one candidate that was given out."""

    candidate: int
    step_seconds: float | None = None
    peaks_gib: tuple[float | None, float | None, float | None] = (None, None, None)
    """By STATISTICS."""
    failed: Failure | None = None

    @property
    def pending(self) -> bool:
        """Still running."""
        return self.step_seconds is None and self.failed is None


@dataclass(frozen=True)
class Beliefs:
    """n candidates."""

    log_seconds: FloatColumn
    """Mean of log step seconds."""
    deviation: FloatColumn
    fits: FloatColumn
    """(n,) probability."""
    runs: FloatColumn
    """(n,) probability that it does not fail for another reason."""
    sure: BoolColumn
    """(n,) told already, or pending."""


def believe(pool: MeasuredPool, told: Sequence[Told]) -> Beliefs:
    """What is known of every candidate. Of a pending run the mean is taken for its result: the constant liar of
    Ginsbourger, Le Riche and Carraro (2010) with the believer's value, so that the next runner looks elsewhere."""
    space = _Space.of(pool)
    log_factor, deviation = _time(pool, space, told)
    given = np.zeros(len(pool), dtype=np.bool_)
    given[[one.candidate for one in told]] = True
    return Beliefs(
        log_seconds=np.log(pool.step_seconds) + log_factor,
        deviation=deviation,
        fits=_fits(pool, space, told),
        runs=_runs(space, told),
        sure=given,
    )


@dataclass(frozen=True)
class _Space:
    """Where the candidates lie."""

    framework: FloatColumn
    """(n, n) 1 where it is the same."""
    names: tuple[str, ...]
    near: FloatColumn
    """(n, n)."""

    @classmethod
    def of(cls, pool: MeasuredPool) -> _Space:
        names = tuple(strategy["framework"] for strategy in pool.strategies)
        codes = np.unique(names, return_inverse=True)[1]
        same = (codes[:, None] == codes).astype(np.float64)
        places = np.array([_place(strategy) for strategy in pool.strategies])
        square = np.square(places[:, None, :] - places).sum(axis=2)
        return cls(same, names, same * np.exp(-0.5 * square))


def _place(strategy: Mapping[str, Any]) -> list[float]:
    return [
        *(float(np.log2(strategy[name])) / length for name, length in _LENGTHS.items()),
        float(strategy["zero_stage"]) / 2.0,
        float(ACTIVATION_CHECKPOINTING.index(strategy["activation_checkpointing"])),
        float(OFFLOADS.index(strategy["offload"]) > 0) * 2.0,
    ]


def _time(pool: MeasuredPool, space: _Space, told: Sequence[Told]) -> tuple[FloatColumn, FloatColumn]:
    """(n,) log factors on the estimated steps, and their deviations."""
    timed = [one for one in told if one.step_seconds is not None]
    at = np.array([one.candidate for one in timed], dtype=np.int64)
    said = np.log(np.array([one.step_seconds for one in timed], dtype=np.float64) / pool.step_seconds[at])
    pending = np.array([one.candidate for one in told if one.pending], dtype=np.int64)
    parts, log_parts = pool.parts, np.zeros(len(TIME_PARTS))
    for _ in range(ROUNDS if len(at) else 1):
        factors = np.exp(log_parts)
        believed = parts @ factors
        shares = parts * factors / believed[:, None]
        # Expanded around the factors believed so far: what the parts explain is taken out and put back.
        explained = np.log(believed / pool.step_seconds) - shares @ log_parts
        prior = (
            LEVEL_DEVIATION**2
            + FRAMEWORK_DEVIATION**2 * space.framework
            + (shares * PART_DEVIATIONS**2) @ shares.T
            + NEAR_DEVIATION**2 * space.near
        )
        inverse = np.linalg.inv(prior[np.ix_(at, at)] + NOISE_DEVIATION**2 * np.eye(len(at)))
        alpha = inverse @ (said - explained[at])
        log_parts = PART_DEVIATIONS**2 * (shares[at].T @ alpha)
    mean = explained + prior[:, at] @ alpha
    seen = np.concatenate([at, pending])
    noise = NOISE_DEVIATION**2 * np.eye(len(seen))
    solved = np.linalg.solve(prior[np.ix_(seen, seen)] + noise, prior[seen])
    variance = np.diag(prior) - np.einsum("ij,ij->j", prior[seen], solved)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _fits(pool: MeasuredPool, space: _Space, told: Sequence[Told]) -> FloatColumn:
    """(n,) probability that the requirement stays below the capacity."""
    deviation = np.array(pool.required_deviation)
    common, framework, near = MEMORY_SHARES
    covariance = (common + framework * space.framework + near * space.near) * np.outer(deviation, deviation)
    mean = np.zeros(len(pool))
    room = np.log(pool.capacity_gib / np.array(pool.required_gib))
    for one in told:
        at = one.candidate
        variance = float(covariance[at, at])
        site = _memory_site(pool, one, float(mean[at]), variance, float(room[at]))
        if site is not None:
            value, noise = site
            gain = covariance[:, at] / (variance + noise)
            mean = mean + gain * (value - mean[at])
            covariance = covariance - np.outer(gain, covariance[at])
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-8))
    return np.array([_NORMAL.cdf(z) for z in ((room - mean) / spread).tolist()])


def _memory_site(
    pool: MeasuredPool, one: Told, mean: float, variance: float, room: float
) -> tuple[float, float] | None:
    """What a told run says of the log factor on its memory: a value and the variance of its noise."""
    if one.failed == "out_of_memory":
        return _truncated(mean, variance, room, above=True)
    if one.step_seconds is None:
        return None
    for measured, estimated in zip(one.peaks_gib, pool.peaks_gib[one.candidate], strict=True):
        if measured is not None:
            return float(np.log(measured / estimated)), MEMORY_NOISE**2
    return _truncated(mean, variance, room, above=False)


def _truncated(mean: float, variance: float, bound: float, *, above: bool) -> tuple[float, float] | None:
    """The normal observation that moves a normal belief to the moments of the same, cut off at a bound."""
    deviation, sign = float(np.sqrt(variance)), 1.0 if above else -1.0
    z = sign * (mean - bound) / deviation
    if z > 6.0:
        return None  # known already
    z = max(z, -6.0)
    ratio = float(np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)) / _NORMAL.cdf(z)
    moved = sign * ratio * deviation
    left = 1.0 - ratio * (z + ratio)
    noise = variance * left / (1.0 - left)
    return mean + moved * (variance + noise) / variance, noise


def _runs(space: _Space, told: Sequence[Told]) -> FloatColumn:
    """(n,) of a framework's runs so far, the share that did not fail for another reason than memory; one that went well
    is taken for granted: what cannot start on this cluster is not asked for again and again."""
    well: dict[str, int] = {}
    badly: dict[str, int] = {}
    for one in told:
        counted = badly if one.failed == "error" else well
        if not one.pending:
            counted[space.names[one.candidate]] = counted.get(space.names[one.candidate], 0) + 1
    shares = {name: (1 + well.get(name, 0)) / (1 + well.get(name, 0) + badly.get(name, 0)) for name in {*space.names}}
    return np.array([shares[name] for name in space.names])


def next_candidate(pool: MeasuredPool, told: Sequence[Told]) -> int | None:
    """The candidate whose run promises most; None where all were given out. The first is the analytical first plan.

    Expected improvement of the log objective over the best that was measured or is believed of a pending run (Jones,
    Schonlau and Welch 1998, equation 15), times the probability that the run gives a time at all. The first runs
    fit at the confidence asked for; once they have shown what memory takes, what fits at even odds may run too.
    """
    beliefs = believe(pool, told)
    left: IntColumn = np.flatnonzero(~beliefs.sure)
    if not len(left):
        return None
    if not told:
        return 0
    shown = sum(not one.pending for one in told) >= CAREFUL_RUNS
    likely = beliefs.fits[left] >= (EVEN_ODDS if shown else pool.memory_confidence)
    left = left[likely] if likely.any() else left
    objective = beliefs.log_seconds + np.log(pool.price)
    works = beliefs.fits * beliefs.runs
    best = _best(pool, told, objective)
    if best is None:
        best = float(objective[left].min()) + NOTHING_RAN
    deviation = np.maximum(beliefs.deviation[left], 1e-6)
    z = (best - objective[left]) / deviation
    cdf = np.array([_NORMAL.cdf(value) for value in z.tolist()])
    improvement = deviation * (z * cdf + np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))
    return int(left[np.argmax(np.maximum(improvement, 1e-300) * works[left])])


def _best(pool: MeasuredPool, told: Sequence[Told], objective: FloatColumn) -> float | None:
    values = [
        float(np.log(one.step_seconds * pool.price[one.candidate]) if one.step_seconds else objective[one.candidate])
        for one in told
        if one.failed is None
    ]
    return min(values, default=None)


def best_measured(pool: MeasuredPool, told: Sequence[Told]) -> int | None:
    """The candidate that ran best, by its objective: a run's noise is averaged out with what the others say of it."""
    ran = [one.candidate for one in told if one.step_seconds is not None]
    if not ran:
        return None
    objective = believe(pool, told).log_seconds + np.log(pool.price)
    return min(ran, key=lambda candidate: float(objective[candidate]))
