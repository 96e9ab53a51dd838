"""The Optuna study: first the starting points, then what lies beside the best ones and where multivariate TPE points.

Asked and told in blocks, each scored in one call of the cost models. Every block starts from a study rebuilt out of the
trials told so far and a sampler seeded by (seed, block), so that a search that was interrupted between two blocks
continues exactly as if it had not been. Points that repeat are answered from what is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import optuna

from cost_models.layouts import head_cost_in_layers
from cost_models.strategy import StrategyTable
from cost_models.units import GIB
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.fitting import fit_finely
from search.result import Progress, StoppedBy, Trial
from search.startable import searched
from search.study_space import Parameters, Proposal, StudySpace, relieved
from search.watch import Watch

BLOCK_TRIALS: Final = 32
NEIGHBOURS: Final = BLOCK_TRIALS * 3 // 4
"""Of a block: points beside the best ones so far. The sampler looks far, these look near."""
UNPRICED: Final = 1e9
"""Told as the value of a strategy that breaks a rule: it has no figures, and its constraints rank it."""

Report = Callable[[Progress, Sequence[Trial]], None]
Sampler = Callable[[int], optuna.samplers.BaseSampler]
"""From a seed."""


def multivariate_tpe(seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of the service."""
    return optuna.samplers.TPESampler(seed=seed, multivariate=True)


@dataclass
class StudyOutcome:
    """What the study tried. `candidates` are the distinct strategies, in order of their first trial."""

    best_step_seconds: float | None
    """Of the lattice's plans and the trials that keep every constraint."""
    trials: list[Trial] = field(default_factory=list)
    blocks: list[Candidates] = field(default_factory=list)
    stopped_by: StoppedBy = "trials"

    @property
    def candidates(self) -> Candidates | None:
        """All distinct strategies tried; None before the first block."""
        return join(self.blocks) if self.blocks else None


def run_study(
    evaluator: Evaluator,
    space: StudySpace,
    seeds: Sequence[Parameters],
    past: Sequence[Trial],
    watch: Watch,
    report: Report,
    best_step_seconds: float | None,
    sampler: Sampler = multivariate_tpe,
) -> StudyOutcome:
    """Try the seeds, then what lies beside the best of them and what the sampler asks for, until the budget ends.

    Whole blocks of `past` are not asked again. Only trials that are not in `past` are reported: whoever stores them has
    those already. `best_step_seconds` is the lattice's.
    """
    study = _Study(evaluator, space, best_step_seconds)
    outcome, budget = study.outcome, evaluator.search.trials
    for block, begin in enumerate(range(0, budget, BLOCK_TRIALS)):
        if watch.stopped_by():
            break
        size = min(BLOCK_TRIALS, budget - begin)
        known = past[begin : begin + size]
        if len(known) == size and all(space.understands(trial.parameters) for trial in known):
            trials = study.tell([trial.parameters for trial in known])
        else:
            first = list(seeds[begin : begin + size])
            first += study.neighbours(min(NEIGHBOURS, size - len(first)))
            trials = study.tell(_ask(study, watch, block, size, first, sampler))
        new = trials[max(len(past) - begin, 0) :]
        tried = len(outcome.trials)
        report(Progress("study", tried, budget, tried, outcome.best_step_seconds), new)
    if len(outcome.trials) < budget:
        outcome.stopped_by = watch.stopped_by() or "trials"
    return outcome


def _ask(
    study: _Study, watch: Watch, block: int, size: int, seeds: Sequence[Parameters], sampler: Sampler
) -> list[Parameters]:
    """The next block of points; fewer when the time ends meanwhile: after hundreds of trials an ask takes long."""
    search = study.evaluator.search
    seed = int(np.random.SeedSequence([search.seed, block]).generate_state(1)[0])
    with _quiet():
        rebuilt = optuna.create_study(
            directions=["minimize"] * (2 if search.objective == "pareto" else 1),
            sampler=sampler(seed),
        )
        rebuilt.add_trials([_told(study.space, trial) for trial in study.outcome.trials])
        for parameters in seeds:
            rebuilt.enqueue_trial(dict(parameters))
        return [rebuilt.ask(study.space.distributions).params for _ in range(size) if not watch.stopped_by()]


def _told(space: StudySpace, trial: Trial) -> optuna.trial.FrozenTrial:
    return optuna.create_trial(
        params=dict(trial.parameters),
        distributions=space.distributions,
        values=list(trial.values),
        constraints=dict(trial.constraints),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna reports every study on stderr and warns of multivariate TPE as experimental; neither is news here."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class _Study:
    """The points tried so far and their scores."""

    def __init__(self, evaluator: Evaluator, space: StudySpace, best_step_seconds: float | None) -> None:
        self.evaluator, self.space = evaluator, space
        self.outcome = StudyOutcome(best_step_seconds)
        self._known: dict[str, Trial] = {}

    def tell(self, points: Sequence[Parameters]) -> list[Trial]:
        """Score a block of points, those seen before from memory, and number them as trials."""
        proposals = [self.space.decode(point) for point in points]
        keys = [_key(proposal) for proposal in proposals]
        fresh = {key: p for key, p in zip(keys, proposals, strict=True) if key not in self._known}
        for cluster in sorted({proposal.cluster for proposal in fresh.values()}):
            chosen = {key: p for key, p in fresh.items() if p.cluster == cluster}
            self._score(cluster, chosen)
        first = len(self.outcome.trials)
        trials = [
            _numbered(self._known[key], first + offset, point)
            for offset, (key, point) in enumerate(zip(keys, points, strict=True))
        ]
        self.outcome.trials.extend(trials)
        best = (self.outcome.best_step_seconds, *(t.step_seconds for t in trials if t.feasible))
        self.outcome.best_step_seconds = min((seconds for seconds in best if seconds is not None), default=None)
        return trials

    def neighbours(self, count: int) -> list[Parameters]:
        """Untried points one knob beside the best feasible trials, of the best one first."""
        feasible = [trial for trial in self.outcome.trials if trial.feasible]
        found: dict[str, Parameters] = {}
        for trial in sorted(feasible, key=lambda trial: trial.values):
            if len(found) >= count:
                break
            for point in self.space.neighbours(trial.parameters):
                found.setdefault(_key(self.space.decode(point)), point)
            found = {key: point for key, point in found.items() if key not in self._known}
        return list(found.values())[:count]

    def _score(self, cluster: int, proposals: Mapping[str, Proposal]) -> None:
        table = proposed(self.evaluator, cluster, list(proposals.values()))
        capacity_bytes = self.evaluator.search.clusters[cluster].capacity_bytes
        limits = np.array([proposal.memory_share for proposal in proposals.values()]) * capacity_bytes
        candidates = fit_finely(
            self.evaluator, cluster, table, limits if self.evaluator.search.objective == "pareto" else None
        )
        named = searched(self.evaluator.search, cluster, candidates.table)
        for row, key in enumerate(proposals):
            self._known[key] = _trial(self.evaluator, candidates, row, outside_space=not named[row])
        self.outcome.blocks.append(candidates.take(named))


def proposed(evaluator: Evaluator, cluster: int, proposals: Sequence[Proposal]) -> StrategyTable:
    """Proposals with every field filled, the layers of their ends moved."""
    strategies = [proposal.strategy for proposal in proposals]
    table = evaluator.resolve_strategies(cluster, strategies)
    if not any(any(proposal.relief) for proposal in proposals):
        return table
    # Every layer is known now; the ends are relieved of theirs.
    head = head_cost_in_layers(evaluator.search.model)
    layouts = [
        relieved(table.layouts[layout], *proposal.relief, pipeline=pipeline, head=head)
        if table.layouts[layout]
        else None
        for layout, pipeline, proposal in zip(
            table.layers_per_stage.tolist(), table.pipeline_parallel_size.tolist(), proposals, strict=True
        )
    ]
    return evaluator.resolve_strategies(
        cluster,
        [{**strategy, "layers_per_stage": layout} for strategy, layout in zip(strategies, layouts, strict=True)],
    )


def _key(proposal: Proposal) -> str:
    return repr((proposal.cluster, proposal.strategy, proposal.relief, proposal.memory_share))


def _trial(evaluator: Evaluator, candidates: Candidates, row: int, *, outside_space: bool) -> Trial:
    search = evaluator.search
    cluster = search.clusters[int(candidates.cluster[row])]
    valid = bool(candidates.valid[row])
    excess_bytes = float(candidates.needed_bytes[row]) - cluster.capacity_bytes
    fits = bool(candidates.fits[row])
    constraints = {
        "valid": float(int(candidates.violations[row]).bit_count()),
        "memory_gib": excess_bytes / GIB if valid else 0.0,
        "host": float(valid and not fits and excess_bytes <= 0),
        "deadline": float(valid and not candidates.in_time[row]),
        "space": float(outside_space),
    }
    figures = (candidates.objective, candidates.peak_bytes / GIB)[: 2 if search.objective == "pareto" else 1]
    return Trial(
        number=0,
        parameters={},
        nodes=cluster.nodes,
        strategy=candidates.table.row(row),
        valid=valid,
        fits=fits,
        values=tuple(float(figure[row]) if valid else UNPRICED for figure in figures),
        constraints=constraints,
        step_seconds=float(candidates.step_seconds[row]) if valid else None,
        peak_bytes=float(candidates.peak_bytes[row]) if valid else None,
        required_upper_bytes=float(candidates.required_upper_bytes[row]) if valid else None,
    )


def _numbered(trial: Trial, number: int, parameters: Parameters) -> Trial:
    values: dict[str, Any] = {**trial.__dict__, "number": number, "parameters": dict(parameters)}
    return Trial(**values)
