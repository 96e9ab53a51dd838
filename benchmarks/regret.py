"""How far the answer of a search is from the best there is, and what the Optuna study adds to the lattice.

usage: python -m benchmarks.regret [--trials 128] [--seeds 10] [--rivals 3] [--case TEXT]

For every case of `benchmarks.search_cases`, by the formulas alone:
- the lattice is scored point by point on all stages, without the sweep's pruning; the regret of a search without a
  study is its first plan's step time over the best of these, less one: 0 is right, infinite is a plan missed;
- the fine space of the study is closed by branch and bound (`benchmarks.fine_space`); the regret of a search with
  `--trials` over it is that of the worst of `--seeds` seeds;
- the gain of the study is the share of the lattice's best step time which it saves. It first tries fixed points, the
  best layouts as they were fitted; what these save is no merit of a sampler;
- rivals, over `--rivals` seeds: random search in the place of TPE, everything else the same; and plain TPE, NSGA-II and
  random search with the study's space and budget, without the fixed points and what lies beside the best ones.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import optuna

from benchmarks.fine_space import best_of_fine_space
from benchmarks.search_cases import CASES
from cost_models.frameworks import FRAMEWORKS
from search import Progress, SearchProblem, Trial, run_search
from search.evaluator import Evaluator
from search.lattice import blocks, build_lattice, keep
from search.optuna_engine import BLOCK_TRIALS, run_study
from search.problem import DEFAULT_FRAMEWORKS
from search.run import _frameworks, study_start
from search.startable import searched
from search.study_space import Parameters, StudySpace
from search.sweep import sweep
from search.watch import Watch

BLOCK_LAYOUTS: Final = 1024
"""With every checkpointing and on every stage of the longest pipeline they still fit into memory."""
WORTH_IT: Final = 0.01
"""A gain that is counted."""
FINE_AIM: Final = 0.005
EXACT: Final = 1e-8
"""Relative: an answer writes seconds with nine decimals."""

Samplers = Mapping[str, Callable[[int], optuna.samplers.BaseSampler]]
SAMPLERS: Final[Samplers] = {
    "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "NSGA-II": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=BLOCK_TRIALS),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""As Optuna ships them; a generation of NSGA-II is a block of the study."""
RANDOM_INSIDE: Final = "random in the place of TPE"
COMPARED: Final = (*SAMPLERS, RANDOM_INSIDE)


@dataclass(frozen=True)
class Scored:
    """The lattice of a search, scored point by point."""

    points: int
    best: float
    """The least objective of its plans; infinite: none fits."""


@dataclass(frozen=True)
class Sampled:
    """What other ways to use the study's budget find."""

    at_first: float
    """Objective of the best of the points that the study tries first."""
    best: Mapping[str, tuple[float, ...]]
    """The best that each sampler found, by seed; empty where there is nothing to sample."""


@dataclass(frozen=True)
class Outcome:
    """What one case came to."""

    lattice: Scored
    answer: float
    """Objective of the first plan of a search without a study; infinite: no plan."""
    studies: tuple[float, ...]
    """The same with a study, by seed."""
    fine: float
    """Of the best plan of the study's whole space."""
    sampled: Sampled

    @property
    def gains(self) -> list[float]:
        """What the study saves, by seed."""
        return [gain(self.lattice.best, found) for found in self.studies]

    @property
    def gain_at_first(self) -> float:
        """What the points that the study tries first save."""
        return gain(self.lattice.best, min(self.lattice.best, self.sampled.at_first))


def score_lattice(search: SearchProblem) -> Scored:
    """Every point, each on all of its stages."""
    evaluator = Evaluator(search)
    named = search.frameworks or (*DEFAULT_FRAMEWORKS, "ddp")
    points, best = 0, math.inf
    for index, cluster in enumerate(search.clusters):
        for framework in FRAMEWORKS:
            if framework.name not in named:
                continue
            lattice = build_lattice(search, cluster, framework)
            choices = range(len(lattice.axes.checkpointing))
            for layouts in blocks(lattice.layouts, BLOCK_LAYOUTS):
                for rows in blocks(lattice.with_micro_batches(layouts), BLOCK_LAYOUTS):
                    for offload in lattice.axes.offload:
                        able = keep(rows, lattice.can_offload(rows, offload[0]))
                        crossed = lattice.with_offload(lattice.with_checkpointing(able, choices), offload)
                        table = evaluator.resolve(index, crossed)
                        found = evaluator.evaluate(index, table)
                        plans = found.objective[found.acceptable & searched(search, index, table)]
                        points += len(table)
                        best = min(best, float(plans.min(initial=math.inf)))
    return Scored(points, best)


def regret(best: float, found: float) -> float:
    """By how much of the best a search is behind it; 0 where both found nothing, infinite where a plan is missed.

    Negative where the search is ahead: its plan would be no point of the lattice.
    """
    if math.isinf(found):
        return 0.0 if math.isinf(best) else math.inf
    return _rounded(found / best - 1.0)


def gain(best: float, found: float) -> float:
    """Share of the best step time that a search saves: 0 where both found nothing, 1 where the search alone found a
    plan, minus infinity where it alone has none."""
    if math.isinf(found):
        return 0.0 if math.isinf(best) else -math.inf
    return _rounded(1.0 - found / best)


def _rounded(share: float) -> float:
    return 0.0 if abs(share) <= EXACT else share


def first_plan(search: SearchProblem) -> float:
    """Objective of the first plan, of a search by step time; infinite: no plan."""
    if search.objective != "step_time":
        raise ValueError("step seconds are compared")
    result = run_search(search, report=_unheard, cancelled=lambda: False, clock=time.monotonic)
    return float(result.plans[0]["time"]["step_seconds"]) if result.plans else math.inf


def sampled(search: SearchProblem, samplers: Samplers, seeds: Sequence[int]) -> Sampled:
    """What the first points of the search's study, and other samplers in its space, find by themselves."""
    evaluator = Evaluator(search)
    swept = sweep(evaluator, _frameworks(evaluator), _forever(), lambda _: None)
    start = study_start(evaluator, swept, None)
    if start is None:
        return Sampled(math.inf, {})
    space, points = start
    at_first = min((score.values[0] for score in _scores(search, space, points) if score.feasible), default=math.inf)
    if not space.distributions:
        return Sampled(at_first, {})
    best = {name: tuple(_best_of(search, space, make(seed)) for seed in seeds) for name, make in samplers.items()}
    best[RANDOM_INSIDE] = tuple(_random_inside(replace(search, seed=seed), space, points) for seed in seeds)
    return Sampled(at_first, best)


def _random_inside(search: SearchProblem, space: StudySpace, points: Sequence[Parameters]) -> float:
    """The study as it is, but for its sampler."""
    outcome = run_study(
        Evaluator(search),
        space,
        points,
        (),
        _forever(),
        _unheard,
        None,
        sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed),
    )
    return min((trial.values[0] for trial in outcome.trials if trial.feasible), default=math.inf)


def _best_of(search: SearchProblem, space: StudySpace, sampler: optuna.samplers.BaseSampler) -> float:
    """The best feasible value of a plain study."""
    study = optuna.create_study(sampler=sampler)
    best = math.inf
    for begin in range(0, search.trials, BLOCK_TRIALS):
        asked = [study.ask(space.distributions) for _ in range(min(BLOCK_TRIALS, search.trials - begin))]
        scores = _scores(search, space, [trial.params for trial in asked])
        for trial, score in zip(asked, scores, strict=True):
            for name, value in score.constraints.items():
                trial.set_constraint(name, value)
            study.tell(trial, score.values[0])
            if score.feasible:
                best = min(best, score.values[0])
    return best


def _scores(search: SearchProblem, space: StudySpace, points: Sequence[Parameters]) -> list[Trial]:
    """A study of nothing but given points scores them."""
    evaluator = Evaluator(replace(search, trials=len(points)))
    return run_study(evaluator, space, points, (), _forever(), _unheard, None).trials


def _forever() -> Watch:
    return Watch(lambda: 0.0, lambda: False, 0.0, math.inf)


def _unheard(progress: Progress, trials: Sequence[Trial]) -> None:
    """Nobody listens."""


def judge(search: SearchProblem, seeds: Sequence[int], rivals: Sequence[int], samplers: Samplers) -> Outcome:
    """One case, its study and the other samplers over some seeds."""
    lattice = score_lattice(search)
    studies = tuple(first_plan(replace(search, seed=seed)) for seed in seeds)
    return Outcome(
        lattice=lattice,
        answer=first_plan(replace(search, trials=0)),
        studies=studies,
        fine=best_of_fine_space(search, _frameworks(Evaluator(search)), min(lattice.best, *studies)),
        sampled=sampled(search, samplers, rivals),
    )


def row(name: str, outcome: Outcome) -> str:
    """One line of the table of cases; of seeds the median."""
    best, gains = outcome.lattice.best, outcome.gains
    found = outcome.sampled.best
    cells = (
        name,
        f"{outcome.lattice.points:,}",
        "nothing fits" if math.isinf(best) else f"{best:.4g} s",
        f"{regret(best, outcome.answer):.3%}",
        f"{regret(outcome.fine, max(outcome.studies)):.2%}",
        f"{_percent(statistics.median(gains))} ({_percent(min(gains))} to {_percent(max(gains))})",
        _percent(outcome.gain_at_first),
        *(_percent(gain(best, statistics.median(found[one]))) if one in found else "-" for one in COMPARED),
    )
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return "no plan" if math.isinf(share) else f"{share:.2%}"


def summary(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Regret, gains by group, and how often the study is ahead of the other samplers; medians over seeds."""
    wrong = [name for name, one in outcomes.items() if regret(one.lattice.best, one.answer) != 0.0]
    yield f"regret other than 0: {len(wrong)} of {len(outcomes)} cases{': ' if wrong else ''}{', '.join(wrong)}"
    fine = {name: regret(one.fine, max(one.studies)) for name, one in outcomes.items()}
    yield (
        f"fine space, worst seed: regret {max(fine.values()):.2%} at most, 0 in {sum(v == 0 for v in fine.values())}, "
        f"above {FINE_AIM:.1%} in {sum(value > FINE_AIM for value in fine.values())}"
    )
    medians = {name: statistics.median(one.gains) for name, one in outcomes.items()}
    groups = defaultdict(list)
    for name, value in medians.items():
        groups[CASES[name].group].append(value)
    for group, values in groups.items():
        paid = sum(value >= WORTH_IT for value in values)
        yield (
            f"{group}: the study saves {statistics.mean(values):.2%} of a step in the mean, {max(values):.2%} at most; "
            f">= {WORTH_IT:.0%} in {paid} of {len(values)}"
        )
    paid = sum(value >= WORTH_IT for value in medians.values())
    earned = [name for name, one in outcomes.items() if medians[name] - one.gain_at_first >= WORTH_IT]
    yield f"all: >= {WORTH_IT:.0%} in {paid} of {len(medians)}; nothing in {sum(v == 0 for v in medians.values())}"
    yield f"beyond the points that it tries first the study saves >= {WORTH_IT:.0%} in {len(earned)}"
    for sampler in COMPARED:
        pairs = [
            (statistics.median(one.studies), statistics.median(one.sampled.best[sampler]))
            for one in outcomes.values()
            if sampler in one.sampled.best and math.isfinite(statistics.median(one.studies))
        ]
        behind = sum(found > ours * (1.0 + EXACT) for ours, found in pairs)
        ahead = sum(found < ours * (1.0 - EXACT) for ours, found in pairs)
        far = sum(found > ours * (1.0 + WORTH_IT) for ours, found in pairs)
        yield (
            f"{sampler}, of {len(pairs)}: behind the study in {behind} "
            f"({far} by more than {WORTH_IT:.0%}), ahead in {ahead}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Regret of the search, and what its study adds.")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rivals", type=int, default=3)
    parser.add_argument("--case", default="", help="cases whose name holds this text")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
    columns = (
        "case",
        "points",
        "best of the lattice",
        "regret",
        "fine regret",
        "study saves",
        "its first points alone",
        *COMPARED,
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    outcomes: dict[str, Outcome] = {}
    for name, case in CASES.items():
        if asked.case in name:
            outcomes[name] = judge(case.search(trials=asked.trials), range(asked.seeds), range(asked.rivals), SAMPLERS)
            print(row(name, outcomes[name]), flush=True)
    print(*summary(outcomes), sep="\n")


if __name__ == "__main__":
    main()
