"""The peak-memory model: analytical x exp(generic + own), bounded to what was seen, with bounds from the best basis.

The generic correction comes from all runs, the own one from those logged to this service, by framework and cluster. A
bound rests on, from the best: the asker's own cluster, its framework, all runs, or the formulas alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.corrections import STATISTICS
from cost_models.frameworks import FRAMEWORKS as BEHAVIOURS
from cost_models.learned.bounds import group_weights, normal_table, quantile_table
from cost_models.learned.features import FEATURES
from cost_models.learned.generic import Generic, GenericFit, fit_generic
from cost_models.learned.own_runs import OwnRuns, fit_own_runs, latest
from cost_models.learned.rows import MemoryRows
from cost_models.learned.step_time import recency_weights
from cost_models.strategy import FRAMEWORKS, BoolColumn, FloatColumn, IntColumn

ENOUGH_OWN: Final = 20
"""Own runs that carry a bound at 95 % by themselves: its order statistic needs 1 / risk of them."""
FEW_OWN: Final = 5
"""Own runs from which they have a say in the bound."""
PRIOR_RUNS: Final = 10.0
"""How many own runs the spread of others' runs within a family is worth beside them."""
FEWEST_ROWS: Final = 30
FEWEST_GROUPS: Final = 3
"""Of a basis; with less the next one stands. At 95 % the order statistic of fewer rows is their maximum."""
ROWS_TO_COUNT: Final = 20.0
"""A family of so many rows weighs half as much as one of very many: six rows show no tail."""
OTHER_FRAMEWORKS: Final = 0.15
"""How many families of a framework the runs with other frameworks are worth in its bound: a framework of which one
family tells is not known by it. Chosen on unseen families (benchmarks/learning.py): with 0.1 the bound at 95 % covers
92 % of them, from 0.15 to 0.25 it covers 94 % and costs ever more."""


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
    own: Mapping[tuple[int, int], OwnRuns]
    """By framework and cluster."""
    seen: Mapping[tuple[int, int], tuple[float, float]]
    """The same: range of log ratios that corrections are kept in, 0 included."""
    bases: tuple[Basis, ...]
    on_cluster: Mapping[tuple[int, int], int]
    """Basis by framework and cluster."""
    on_framework: Mapping[tuple[int, bool, bool], int]
    """Basis by framework, whether the device's own figure is asked for, and whether attention is eager."""
    anywhere: Mapping[bool, int]
    """Basis by whether the device's own figure is asked for."""

    def cluster_number(self, identity: str) -> int:
        """Index of a cluster, -1 where it has logged nothing."""
        return self.clusters.index(identity) if identity in self.clusters else -1

    def basis(self, framework: int, cluster: int, *, device: bool = False, eager: bool = False) -> int:
        """Index of the best basis, -1: the formulas alone.

        What is required follows what is allocated: `device` is for judging figures of the device itself.
        """
        found = self.on_cluster.get((framework, cluster))
        if found is None:
            found = self.on_framework.get((framework, device, eager), self.anywhere.get(device))
        return -1 if found is None else found

    def errors(self, framework: int, basis: int) -> FloatColumn:
        """(k,) log(measured / corrected) at LEVELS; without a basis what the formulas are taken to miss by."""
        return normal_table(BEHAVIOURS[framework].memory_error) if basis < 0 else self.bases[basis].errors

    def range(self, framework: int, cluster: int) -> tuple[float, float]:
        """Within what log corrections lie."""
        least, most = self.seen.get((framework, cluster), (0.0, 0.0))
        if self.generic is not None:
            share = self.generic.share
            least, most = min(least, share * self.generic.least), max(most, share * self.generic.most)
        return least, most

    def predict(self, features: FloatColumn, framework: IntColumn, cluster: int) -> FloatColumn:
        """(n, 3) log corrections by STATISTICS."""
        answer = np.zeros((len(features), 3)) if self.generic is None else self.generic.predict(features)
        for number in np.unique(framework).tolist():
            if (own := self.own.get((number, cluster))) is not None:
                rows = np.flatnonzero(framework == number)
                answer[rows] = np.clip(answer[rows] + own.predict(features[rows]), *self.range(number, cluster))
        return answer


def fit_memory(
    rows: MemoryRows,
    clusters: tuple[str, ...],
    *,
    now_seconds: float,
    generic: bool = True,
    asked: frozenset[tuple[int, int]] | None = None,
) -> MemoryModel:
    """Fit all parts. `clusters`: names that `rows.origin.cluster` points to; the others as in the two steps of it."""
    return fit_on_own(fit_on_others(rows, generic=generic), rows, clusters, now_seconds=now_seconds, asked=asked)


@dataclass(frozen=True)
class OthersFit:
    """What does not take own runs apart: it serves clusters that have logged nothing."""

    generic: Generic | None
    rows: MemoryRows
    errors: FloatColumn
    """(m,) what each row was missed by, without its family."""


def fit_on_others(rows: MemoryRows, *, generic: bool = True) -> OthersFit:
    """The generic part, from all runs; `generic` False: without a generic correction, whatever it were worth.

    Of runs that ran out of memory those that the formulas say fit: logged peaks are those of survivors.
    """
    told = rows.take(~rows.censored | (rows.log_ratio > 0))
    fitted = fit_generic(told, told.log_ratio) if generic else GenericFit(None, np.zeros(len(told)))
    return OthersFit(fitted.generic, told, told.log_ratio - fitted.left_out)


def fit_on_own(
    others: OthersFit,
    rows: MemoryRows,
    clusters: tuple[str, ...],
    *,
    now_seconds: float,
    asked: frozenset[tuple[int, int]] | None = None,
) -> MemoryModel:
    """The whole model: what was logged to this service on top of the generic part. `asked`: frameworks and clusters
    that will be asked about, None: all."""
    generic, bases = others.generic, _Bases(others.rows, others.errors)
    own: dict[tuple[int, int], OwnRuns] = {}
    seen: dict[tuple[int, int], tuple[float, float]] = {}
    mine = rows.take(rows.origin.logged)
    for framework, cluster in np.unique(np.stack([mine.origin.framework, mine.origin.cluster], 1), axis=0).tolist():
        if asked is not None and (framework, cluster) not in asked:
            continue
        logged = mine.take((mine.origin.framework == framework) & (mine.origin.cluster == cluster))
        logged = logged.take(latest(logged))
        base = np.zeros((len(logged), 3)) if generic is None else generic.predict(logged.features)
        residual = logged.log_ratio - base[np.arange(len(logged)), logged.statistic]
        fitted = fit_own_runs(logged, residual, recency_weights(logged.origin.at_seconds, now_seconds))
        own[framework, cluster] = fitted.own
        # Of the whole correction, as it is bounded: the generic part included.
        total = (fitted.values + logged.log_ratio - residual)[fitted.used]
        seen[framework, cluster] = (float(total.min(initial=0.0)), float(total.max(initial=0.0)))
        # The next run may be of a model that the cluster has run or of another: half and half.
        errors = [(fitted.values - left_out)[fitted.used] for left_out in (fitted.left_out, fitted.shape_left_out)]
        request = logged.origin.request[fitted.used]
        bases.add_own(framework, cluster, clusters[cluster], np.concatenate(errors), np.tile(request, 2))
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
        self._device = rows.statistic == STATISTICS.index("device")
        self._eager = rows.features[:, FEATURES.index("eager attention")] > 0
        self.found: list[Basis] = []
        self.on_cluster: dict[tuple[int, int], int] = {}
        self.on_framework: dict[tuple[int, bool, bool], int] = {}
        self.anywhere: dict[bool, int] = {}
        for device in (False, True):
            self._add_anywhere(device)
        for framework in np.unique(rows.origin.framework).tolist():
            for device in (False, True):
                for eager in (False, True):
                    self._add_framework(framework, device, eager)

    def add_own(self, framework: int, cluster: int, identity: str, errors: FloatColumn, request: IntColumn) -> None:
        """Of one cluster, from what the prediction of each of its runs missed by without it."""
        runs = len(np.unique(request))
        if runs < FEW_OWN:
            return
        spread, weights = self._within_families(framework)
        share = PRIOR_RUNS / (PRIOR_RUNS + runs) if len(spread) else 0.0
        table = quantile_table(
            np.concatenate([errors, spread]),
            np.concatenate([group_weights(request) * (1.0 - share), weights * share]),
        )
        sentence = f"what {runs} runs logged on this cluster ({identity}) with {FRAMEWORKS[framework]} missed by"
        if runs < ENOUGH_OWN:
            sentence += " and, as they are few, on how far others' runs are spread"
        self.on_cluster[framework, cluster] = self._add(sentence, table)

    def _add_anywhere(self, device: bool) -> None:
        family = self._rows.origin.family
        for at in (self._device == device, np.ones(len(family), dtype=np.bool_)):
            families = len(np.unique(family[at]))
            if at.sum() >= FEWEST_ROWS and families >= FEWEST_GROUPS:
                sentence = f"what {at.sum()} peaks of {families} families of runs, with any framework, missed by"
                table = quantile_table(self._errors[at], group_weights(family[at], ROWS_TO_COUNT))
                self.anywhere[device] = self._add(sentence, table)
                return

    def _add_framework(self, framework: int, device: bool, eager: bool) -> None:
        """From runs that are most like those asked about of which there are enough: in statistic and attention, in
        statistic, of the framework."""
        origin, name = self._rows.origin, FRAMEWORKS[framework]
        of_framework = origin.framework == framework
        of_statistic = of_framework & (self._device == device)
        of_attention = of_statistic & (self._eager == eager)
        words = {"eager": " and eager attention" if eager else " and flash attention"}
        for at, kind in ((of_attention, words["eager"]), (of_statistic, ""), (of_framework, "")):
            shapes = len(np.unique(origin.shape[at]))
            if at.sum() >= FEWEST_ROWS and shapes >= FEWEST_GROUPS:
                sentence = f"what {at.sum()} peaks of {shapes} models with {name}{kind} missed by"
                self.on_framework[framework, device, eager] = self._add(sentence, self._shrunk(at, device))
                return

    def _shrunk(self, at: BoolColumn, device: bool) -> FloatColumn:
        """The table of some rows, and with a small weight of those with any framework."""
        family = self._rows.origin.family
        families = len(np.unique(family[at]))
        share = families / (families + OTHER_FRAMEWORKS)
        others = self._device == device
        if others.sum() < FEWEST_ROWS:
            others = np.ones(len(family), dtype=np.bool_)
        return quantile_table(
            np.concatenate([self._errors[at], self._errors[others]]),
            np.concatenate(
                [
                    share * group_weights(family[at], ROWS_TO_COUNT),
                    (1.0 - share) * group_weights(family[others], ROWS_TO_COUNT),
                ]
            ),
        )

    def _add(self, sentence: str, table: FloatColumn) -> int:
        """Number of the basis; one that is there already is not added again."""
        for number, basis in enumerate(self.found):
            if basis.sentence == sentence and np.array_equal(basis.errors, table):
                return number
        self.found.append(Basis(sentence, table))
        return len(self.found) - 1

    def _within_families(self, framework: int) -> tuple[FloatColumn, FloatColumn]:
        """How far runs of a family are spread around its middle, and their weights; of the framework if it is known."""
        origin = self._rows.origin
        known = (framework, False, False) in self.on_framework
        at = origin.framework == framework if known else np.ones(len(self._rows), dtype=np.bool_)
        errors, family = self._errors[at].copy(), origin.family[at]
        for number in np.unique(family):
            errors[family == number] -= np.median(errors[family == number])
        return errors, group_weights(family, ROWS_TO_COUNT)
