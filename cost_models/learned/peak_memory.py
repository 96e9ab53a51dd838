"""The peak-memory model: analytical x exp(generic + own), bounded to what was seen, with bounds from the best basis.

The generic correction comes from all runs, the own one from those logged to this service, by framework and cluster. A
bound rests on, from the best: the asker's own cluster, its framework, all runs, or the formulas alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.frameworks import FRAMEWORKS as BEHAVIOURS
from cost_models.learned.bounds import balanced_weights, normal_table, quantile_table
from cost_models.learned.generic import Generic, fit_generic
from cost_models.learned.own_runs import OwnRuns, fit_own_runs, latest
from cost_models.learned.runs import MemoryRows
from cost_models.learned.step_time import recency_weights
from cost_models.strategy import FRAMEWORKS, FloatColumn, IntColumn

ENOUGH_OWN: Final = 20
"""Own runs that carry a bound by themselves (engines of conformal prediction need 1 / risk of them)."""
FEW_OWN: Final = 5
"""Own runs from which they have a say in the bound."""
PRIOR_RUNS: Final = 5.0
"""How many own runs the spread of others' runs within a family is worth beside them."""
FEWEST_ROWS: Final = 30
FEWEST_GROUPS: Final = 3
"""Of a basis: with less the formulas' own error stands (design rule of this project: engines notes, section 4.4)."""


@dataclass(frozen=True)
class Basis:
    """What a bound rests on."""

    sentence: str
    """The end of "its bound rests on ..."."""
    errors: FloatColumn
    """(k,) log(measured / corrected) at LEVELS."""


@dataclass(frozen=True)
class MemoryModel:
    """One version of what was learned about memory."""

    clusters: tuple[str, ...]
    """That logged runs; the indices of `own` point here."""
    generic: Generic | None
    own: Mapping[int, OwnRuns]
    """By framework."""
    seen: Mapping[int, tuple[float, float]]
    """By framework: range of log ratios that its corrections are kept in, 0 included."""
    bases: tuple[Basis, ...]
    on_cluster: Mapping[tuple[int, int], int]
    """Basis by framework and cluster; likewise:"""
    on_framework: Mapping[int, int]
    anywhere: int | None

    def cluster_number(self, identity: str) -> int:
        """Index of a cluster, -1 where it has logged nothing."""
        return self.clusters.index(identity) if identity in self.clusters else -1

    def basis(self, framework: int, cluster: int) -> int:
        """Index of the best basis, -1: the formulas alone."""
        found = self.on_cluster.get((framework, cluster), self.on_framework.get(framework, self.anywhere))
        return -1 if found is None else found

    def errors(self, framework: int, cluster: int) -> FloatColumn:
        """(k,) log(measured / corrected) at LEVELS, of the best basis."""
        basis = self.basis(framework, cluster)
        return normal_table(BEHAVIOURS[framework].memory_error) if basis < 0 else self.bases[basis].errors

    def range(self, framework: int) -> tuple[float, float]:
        """Within what log corrections of a framework lie."""
        least, most = self.seen.get(framework, (0.0, 0.0))
        if self.generic is not None:
            share = self.generic.share
            least, most = min(least, share * self.generic.least), max(most, share * self.generic.most)
        return least, most

    def predict(self, features: FloatColumn, framework: IntColumn, cluster: int) -> FloatColumn:
        """(n, 3) log corrections by STATISTICS."""
        answer = np.zeros((len(features), 3)) if self.generic is None else self.generic.predict(features)
        for number, own in self.own.items():
            rows = np.flatnonzero(framework == number)
            if len(rows):
                answer[rows] += own.predict(features[rows], cluster)
        for number in np.unique(framework).tolist():
            rows = np.flatnonzero(framework == number)
            answer[rows] = np.clip(answer[rows], *self.range(number))
        return answer


def fit_memory(rows: MemoryRows, clusters: tuple[str, ...], *, now_seconds: float) -> MemoryModel:
    """Fit all parts. `clusters`: names that `rows.origin.cluster` points to."""
    return fit_on_own(fit_on_others(rows), rows, clusters, now_seconds=now_seconds)


@dataclass(frozen=True)
class OthersFit:
    """What does not take own runs apart: it serves clusters that have logged nothing."""

    generic: Generic | None
    rows: MemoryRows
    errors: FloatColumn
    """(m,) what each row was missed by, without its family."""


def fit_on_others(rows: MemoryRows) -> OthersFit:
    """The generic part, from all runs.

    Of runs that ran out of memory those that the formulas say fit: logged peaks are those of survivors.
    """
    told = rows.take(~rows.censored | (rows.log_ratio > 0))
    fitted = fit_generic(told, told.log_ratio)
    return OthersFit(fitted.generic, told, told.log_ratio - fitted.left_out)


def fit_on_own(others: OthersFit, rows: MemoryRows, clusters: tuple[str, ...], *, now_seconds: float) -> MemoryModel:
    """The whole model: what was logged to this service on top of the generic part."""
    generic, bases = others.generic, _Bases(others.rows, others.errors)
    own: dict[int, OwnRuns] = {}
    seen: dict[int, tuple[float, float]] = {}
    for framework in np.unique(rows.origin.framework[rows.origin.logged]).tolist():
        logged = rows.take(rows.origin.logged & (rows.origin.framework == framework))
        logged = logged.take(latest(logged))
        base = np.zeros((len(logged), 3)) if generic is None else generic.predict(logged.features)
        residual = logged.log_ratio - base[np.arange(len(logged)), logged.statistic]
        weights = recency_weights(logged.origin.at_seconds, now_seconds)
        fitted = fit_own_runs(logged, residual, weights, len(clusters))
        own[framework] = fitted.own
        values = fitted.values[fitted.used]
        seen[framework] = (float(values.min(initial=0.0)), float(values.max(initial=0.0)))
        error, origin = (fitted.values - fitted.left_out)[fitted.used], logged.origin.take(fitted.used)
        for cluster in np.unique(origin.cluster).tolist():
            at = origin.cluster == cluster
            bases.add_own(framework, cluster, clusters[cluster], error[at], origin.request[at])
    return MemoryModel(
        clusters=clusters,
        generic=generic,
        own=own,
        seen=seen,
        bases=tuple(bases.found),
        on_cluster=bases.on_cluster,
        on_framework=bases.on_framework,
        anywhere=bases.anywhere,
    )


class _Bases:
    """Bases found so far, from errors of others' runs without their family, (m,)."""

    def __init__(self, rows: MemoryRows, errors: FloatColumn) -> None:
        self._rows, self._errors = rows, errors
        self.found: list[Basis] = []
        self.on_cluster: dict[tuple[int, int], int] = {}
        self.on_framework: dict[int, int] = {}
        origin = rows.origin
        families = len(np.unique(origin.family))
        if len(rows) >= FEWEST_ROWS and families >= FEWEST_GROUPS:
            sentence = (
                f"what {len(rows)} measured peaks of {families} families of runs missed by, of whatever framework"
            )
            self._add(Basis(sentence, quantile_table(errors, balanced_weights(origin.family))))
        self.anywhere = len(self.found) - 1 if self.found else None
        for framework in np.unique(origin.framework).tolist():
            at = origin.framework == framework
            shapes = len(np.unique(origin.shape[at]))
            if at.sum() >= FEWEST_ROWS and shapes >= FEWEST_GROUPS:
                table = quantile_table(errors[at], balanced_weights(origin.shape[at]))
                name = FRAMEWORKS[framework]
                sentence = f"what {at.sum()} measured peaks of {shapes} models with {name} missed by"
                self.on_framework[framework] = self._add(Basis(sentence, table))

    def add_own(self, framework: int, cluster: int, identity: str, errors: FloatColumn, request: IntColumn) -> None:
        """Of one cluster, from what the prediction of each of its runs missed by without it."""
        runs = len(np.unique(request))
        if runs < FEW_OWN:
            return
        spread, weights = self._within_families(framework)
        share = PRIOR_RUNS / (PRIOR_RUNS + runs)
        together = np.concatenate([errors, spread])
        table = quantile_table(together, np.concatenate([balanced_weights(request) * (1.0 - share), weights * share]))
        sentence = f"what {runs} runs logged on this cluster ({identity}) with {FRAMEWORKS[framework]} missed by"
        if runs < ENOUGH_OWN:
            sentence += ", and on others' while they are few"
        self.on_cluster[framework, cluster] = self._add(Basis(sentence, table))

    def _add(self, basis: Basis) -> int:
        self.found.append(basis)
        return len(self.found) - 1

    def _within_families(self, framework: int) -> tuple[FloatColumn, FloatColumn]:
        """How far runs of a family are spread around its middle, and their weights; of the framework if it is known."""
        origin = self._rows.origin
        at = origin.framework == framework if framework in self.on_framework else np.ones(len(self._rows), dtype=bool)
        errors, family = self._errors[at].copy(), origin.family[at]
        for number in np.unique(family):
            errors[family == number] -= np.median(errors[family == number])
        return errors, balanced_weights(family)
