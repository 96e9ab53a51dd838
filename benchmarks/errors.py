"""Errors of predictions over groups of measured runs, by the definitions of the acceptance scorer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from benchmarks.outcomes import MEMORY, Outcome

FEWEST_STRATEGIES: Final = 5
"""Of a set in which order is judged."""


@dataclass(frozen=True)
class Errors:
    """Of one group of runs. NaN where nothing was measured."""

    runs: int
    refused: int
    """Runs that are called invalid, although they ran."""
    times: int
    time_median: float
    time_mean: float
    time_p90: float
    time_bias: float
    """Median of predicted / measured."""
    sets: int
    """Of five and more different strategies with everything else equal."""
    spearman: float
    regret: float
    """How much slower, as measured, the strategy predicted fastest is than the fastest; mean over sets."""
    memories: int
    memory_median: float
    memory_p90: float
    memory_bias: float
    ran_out: int
    ran_out_missed: int
    """Called fitting."""
    ran: int
    false_unfit: int


def errors_of(group: Sequence[Outcome]) -> Errors:
    """Every statistic of memory that was measured counts on its own."""
    ran = [run for run in group if run.valid and not run.ran_out]
    timed = [run for run in ran if run.measured.get("step_seconds")]
    time_ratios = [run.step_seconds / run.measured["step_seconds"] for run in timed if run.step_seconds]
    memory_ratios = [run.memory[name] / run.measured[name] for run in ran for name in MEMORY if run.measured.get(name)]
    time_errors, memory_errors = _errors(time_ratios), _errors(memory_ratios)
    orders = [order for together in _sets(timed) if not math.isnan((order := _order(together))[0])]
    out = [run for run in group if run.ran_out]
    return Errors(
        runs=len(group),
        refused=sum(not run.valid for run in group),
        times=len(time_errors),
        time_median=_median(time_errors),
        time_mean=_mean(time_errors),
        time_p90=quantile(time_errors, 0.9),
        time_bias=_median(time_ratios),
        sets=len(orders),
        spearman=_mean([order[0] for order in orders]),
        regret=_mean([order[1] for order in orders]),
        memories=len(memory_errors),
        memory_median=_median(memory_errors),
        memory_p90=quantile(memory_errors, 0.9),
        memory_bias=_median(memory_ratios),
        ran_out=len(out),
        ran_out_missed=sum(run.fits for run in out),
        ran=len(ran),
        false_unfit=sum(not run.fits for run in ran),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies, without interpolation; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, ties shared; NaN where one side is constant."""
    a, b = _ranks(first), _ranks(second)
    mean_a, mean_b = fmean(a), fmean(b)
    spread = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    together = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return together / math.sqrt(spread) if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [fmean(places[value]) for value in values]


def _sets(timed: Sequence[Outcome]) -> list[list[Outcome]]:
    sets: dict[str, list[Outcome]] = defaultdict(list)
    for run in timed:
        sets[run.problem].append(run)
    return [runs for runs in sets.values() if len({run.strategy for run in runs}) >= FEWEST_STRATEGIES]


def _order(runs: Sequence[Outcome]) -> tuple[float, float]:
    """Spearman correlation and regret of one set."""
    predicted = [run.step_seconds or math.nan for run in runs]
    measured = [run.measured["step_seconds"] for run in runs]
    first = min(predicted) * (1 + 1e-9)
    chosen = fmean(time for time, guess in zip(measured, predicted, strict=True) if guess <= first)
    return spearman(predicted, measured), chosen / min(measured) - 1


def _errors(ratios: Sequence[float]) -> list[float]:
    return [abs(ratio - 1) for ratio in ratios]


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
