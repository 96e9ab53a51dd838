"""The report of a training: how models that were fitted without a group of runs do on that group.

Three groupings: the next run of a cluster that has logged some, model shapes (of clusters that have logged others) and
families of sources (clusters that have logged nothing). Sources of one family share machines, software or runs; a
family is never split between fit and score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from cost_models.learned.corrections import LearnedCorrections
from cost_models.learned.features import SCHEMA
from cost_models.learned.folds import evenly, folds
from cost_models.learned.monotonicity import monotonicity
from cost_models.learned.peak_memory import OthersFit, fit_memory, fit_on_others, fit_on_own
from cost_models.learned.rows import MemoryRows, TimeRows
from cost_models.learned.runs import TrainingRuns
from cost_models.learned.scores import Scored, figures, group_figures, joined, score
from cost_models.learned.step_time import fit_step_time
from cost_models.strategy import FRAMEWORKS, BoolColumn, IntColumn

OWN_RUNS: Final = (0, 5, 10, 20, 50, 100)
"""Of the learning curve."""
TIME_RUNS: Final = 10
"""Own runs that step time is judged with."""
DRAWS: Final = 3
MOST_ROWS_OF_GROUP: Final = 150
"""That are scored of each group, drawn evenly over its own: a dense sweep costs no more than a paper's table."""
MOST_GROUPS: Final = 40
"""That are scored, the largest."""
MOST_FOLDS: Final = 8
"""Groups are left out together beyond so many."""
MOST_FAMILIES: Final = 8
"""Of the learning curve, the largest."""
FEWEST_ROWS: Final = 20
SEED: Final = 0


def evaluate(
    runs: TrainingRuns, model: LearnedCorrections, *, now: datetime, known: BoolColumn | None = None
) -> dict[str, Any]:
    """The report, JSON-able and the same for the same runs.

    `model`: what `train` made of these runs. `known`: records, in the order given to `training_runs`, that the serving
    version was trained on; the report then holds figures of the same folds by models that are fitted on these only.
    """
    seconds = now.timestamp()
    requests = None if known is None else runs.known_requests(known)
    # Where all families together find no use for a generic correction, there is none to judge in the folds either;
    # where they do, each fold chooses it anew without its group.
    generic = model.peak_memory.generic is not None
    return {
        "schema": SCHEMA,
        "runs": len(runs),
        "memory_rows": len(runs.memory),
        "out_of_memory": int(runs.memory.censored.sum()),
        "step_times": len(runs.time),
        "skipped": {"records": len(runs.skipped), "reasons": _reasons(runs)},
        "generic_correction": generic,
        "candidate": _grouped(runs, None, seconds, generic=generic),
        "serving": None if requests is None else _grouped(runs, requests, seconds, generic=generic),
        "learning_curve": learning_curve(runs, now_seconds=seconds, generic=generic),
        "step_time": time_errors(runs, now_seconds=seconds),
        "monotonicity": monotonicity(model),
    }


def learning_curve(
    runs: TrainingRuns,
    *,
    now_seconds: float,
    own_runs: tuple[int, ...] = OWN_RUNS,
    draws: int = DRAWS,
    generic: bool = True,
) -> list[dict[str, Any]]:
    """Families as if they were new clusters that log k runs, drawn at random; their other rows are scored."""
    rows = runs.memory
    counts = np.bincount(rows.origin.family[~rows.censored], minlength=len(runs.families))
    largest = np.argsort(-counts, kind="stable")[:MOST_FAMILIES]
    lines = []
    for family in largest[counts[largest] >= FEWEST_ROWS].tolist():
        mine = rows.origin.family == family
        others = fit_on_others(rows.take(~mine), generic=generic)
        requests = np.unique(rows.origin.request[mine & ~rows.censored])
        for count in own_runs:
            if count > len(requests) // 2:
                break
            parts = [
                score_with_own(others, rows, mine, requests[chosen], runs.clusters, now_seconds=now_seconds)
                for chosen in _draws(len(requests), count, draws)
            ]
            together = joined(parts)
            lines.append(
                {"family": runs.families[family], "own_runs": count} | group_figures(together, ~together.rows.censored)
            )
    return lines


def score_with_own(
    others: OthersFit,
    rows: MemoryRows,
    mine: BoolColumn,
    logged: IntColumn,
    clusters: tuple[str, ...],
    *,
    now_seconds: float,
) -> Scored:
    """Rows of a family (`mine`) less those of the requests that it has logged, by a model that has these."""
    own = mine & np.isin(rows.origin.request, logged)
    fitted = rows.take(~mine | own)
    # The runs that are drawn are logged now, whatever they were.
    drawn = own[~mine | own]
    at = np.where(drawn, now_seconds, fitted.origin.at_seconds)
    origin = replace(fitted.origin, logged=fitted.origin.logged | drawn, at_seconds=at)
    left = np.flatnonzero(mine & ~own)
    asked = rows.take(left[evenly(np.zeros(len(left), dtype=np.int64), MOST_ROWS_OF_GROUP)])
    mined = replace(fitted, origin=origin)
    return score(fit_on_own(others, mined, clusters, now_seconds=now_seconds, asked=asked_about(asked)), asked)


def asked_about(rows: MemoryRows) -> frozenset[tuple[int, int]]:
    """Frameworks and clusters of some rows."""
    return frozenset(zip(rows.origin.framework.tolist(), rows.origin.cluster.tolist(), strict=True))


def time_errors(runs: TrainingRuns, *, now_seconds: float) -> dict[str, Any]:
    """Median errors of step time of families as if they were new clusters, without runs and with TIME_RUNS of them."""
    rows, found = runs.time, {}
    for family in range(len(runs.families)):
        mine = np.flatnonzero(rows.origin.family == family)
        if len(mine) < FEWEST_ROWS:
            continue
        without, learned = [], []
        for chosen in _draws(len(mine), TIME_RUNS, DRAWS):
            left = np.setdiff1d(mine, mine[chosen])
            log_factor = _log_factors(runs, mine, mine[chosen], left, now_seconds)
            without.append(float(np.median(np.abs(np.expm1(-rows.log_ratio[left])))))
            learned.append(float(np.median(np.abs(np.expm1(log_factor - rows.log_ratio[left])))))
        found[runs.families[family]] = {
            "rows": len(mine),
            "median_error": float(np.mean(without)),
            "median_error_with_own_runs": float(np.mean(learned)),
        }
    return {"own_runs": TIME_RUNS, "by_family": found}


def _log_factors(runs: TrainingRuns, mine: IntColumn, logged: IntColumn, left: IntColumn, now_seconds: float) -> Any:
    rows = runs.time
    fitted = np.setdiff1d(np.arange(len(rows)), np.setdiff1d(mine, logged))
    taken = rows.take(fitted)
    origin = replace(taken.origin, logged=taken.origin.logged | np.isin(fitted, logged))
    factors = fit_step_time(TimeRows(origin, taken.log_ratio), runs.clusters, now_seconds=now_seconds).by_group
    of_left = rows.origin.take(left)
    keys = [(runs.clusters[c], f) for c, f in zip(of_left.cluster.tolist(), of_left.framework.tolist(), strict=True)]
    return np.array([factors[key].log_factor if key in factors else 0.0 for key in keys])


def _grouped(runs: TrainingRuns, requests: IntColumn | None, now_seconds: float, *, generic: bool) -> dict[str, Any]:
    """Figures by all groupings; with `requests` of models that are fitted on these only."""
    origin = runs.memory.origin
    cluster, names = _own_clusters(runs)
    next_run = np.full(len(cluster), -1)
    next_run[origin.logged] = folds(origin.request[origin.logged], MOST_FOLDS)

    def unseen(fold: IntColumn, group: IntColumn, names: tuple[str, ...]) -> dict[str, Any] | None:
        return _unseen(runs, fold, group, names, requests, now_seconds, generic=generic)

    return {
        "own_run": unseen(next_run, cluster, names),
        "model_shape": unseen(folds(origin.shape, MOST_FOLDS), origin.shape, runs.shapes),
        "source": unseen(folds(origin.family, MOST_FOLDS), origin.family, runs.families),
    }


def _own_clusters(runs: TrainingRuns) -> tuple[IntColumn, tuple[str, ...]]:
    """(m,) cluster and framework of rows that were logged, -1 of others; their names."""
    origin = runs.memory.origin
    logged = np.flatnonzero(origin.logged)
    pairs = np.stack([origin.cluster[logged], origin.framework[logged]], axis=1)
    found, which = np.unique(pairs, axis=0, return_inverse=True)
    number = np.full(len(origin), -1)
    number[logged] = which.reshape(-1)
    return number, tuple(
        f"{FRAMEWORKS[framework]} on {runs.clusters[cluster]}" for cluster, framework in found.tolist()
    )


def _unseen(
    runs: TrainingRuns,
    fold: IntColumn,
    group: IntColumn,
    names: tuple[str, ...],
    requests: IntColumn | None,
    now_seconds: float,
    *,
    generic: bool,
) -> dict[str, Any] | None:
    """Figures of the rows of each fold by models that are fitted on the others; rows of fold -1 are not left out."""
    rows = runs.memory
    judged = np.flatnonzero(fold >= 0)
    if len(np.unique(fold[judged])) < 2:
        return None
    known = np.ones(len(rows), dtype=np.bool_) if requests is None else np.isin(rows.origin.request, requests)
    scored_rows = judged[evenly(group[judged], MOST_ROWS_OF_GROUP)]
    largest = np.argsort(-np.bincount(group[judged]), kind="stable")[:MOST_GROUPS]
    scored_rows = scored_rows[np.isin(group[scored_rows], largest)]
    parts, groups = [], []
    for number in np.unique(fold[scored_rows]).tolist():
        fitted = rows.take(known & (fold != number))
        left = scored_rows[fold[scored_rows] == number]
        asked = asked_about(rows.take(left))
        model = fit_memory(fitted, runs.clusters, now_seconds=now_seconds, generic=generic, asked=asked)
        parts.append(score(model, rows.take(left)))
        groups.append(group[left])
    return figures(joined(parts), np.concatenate(groups), names)


def _draws(size: int, count: int, draws: int) -> list[IntColumn]:
    generator = np.random.default_rng(SEED)
    return [generator.permutation(size)[:count] for _ in range(draws if count else 1)]


def _reasons(runs: TrainingRuns) -> Mapping[str, int]:
    """How often each of the most frequent reasons occurs."""
    counts: dict[str, int] = {}
    for skipped in runs.skipped:
        counts[skipped.reason] = counts.get(skipped.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20])
