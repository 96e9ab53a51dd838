"""Scores strategies with the cost models: rules first, then time and memory of those that break none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from cost_models.answer import score_answers
from cost_models.codes import CodeColumn
from cost_models.estimate import score
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.stages import all_stages, bounding_stages
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, PartialColumns, StrategyTable, partial_columns
from cost_models.time import estimate_time
from cost_models.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
from search.candidates import Candidates
from search.judgement import Judgement, Stages, judge, judge_sparingly, least_needed_bytes
from search.problem import SearchProblem

_FIGURES: Final = ("step_seconds", "peak_bytes", "required_upper_bytes", "needed_bytes", "objective")
_MARKS: Final = ("fits", "fits_at_even_odds", "in_time")
_TIMED: Final = ("step_seconds", "objective", "in_time")
_JUDGED: Final = ("peak_bytes", "required_upper_bytes", "needed_bytes", "fits", "fits_at_even_odds")


@dataclass(frozen=True)
class Screening:
    """n strategies."""

    violations: CodeColumn
    needed_bytes: FloatColumn
    """Of a GPU, at even odds, at least; 0 where a rule is broken."""


@dataclass(frozen=True)
class Evaluator:
    """The cost models, asked about one search. Remembers the defaults that were filled in."""

    search: SearchProblem
    assumptions: dict[str, None] = field(default_factory=dict)
    """Sentences in the order of their first use."""

    def resolve(self, cluster: int, partial: PartialColumns) -> StrategyTable:
        """Strategies with every field filled."""
        resolved = resolve_strategies(self.search.problems[cluster], partial)
        self.assumptions.update(dict.fromkeys(resolved.assumptions))
        return resolved.table

    def resolve_strategies(self, cluster: int, strategies: Sequence[Mapping[str, Any]]) -> StrategyTable:
        """Strategies in the words of the contract, every field filled."""
        return self.resolve(cluster, partial_columns(strategies))

    def evaluate(self, cluster: int, table: StrategyTable) -> Candidates:
        """Every strategy of a table, in order, on all of its stages."""
        candidates = self._candidates(cluster, table, self._judge)
        valid = np.flatnonzero(candidates.valid)
        return self._with_time(cluster, candidates, valid, all_stages)

    def judge(self, cluster: int, table: StrategyTable) -> Candidates:
        """What a sweep asks first of every strategy: rules and memory, by the bounding stages; what was learned only
        where it decides. Figures of time are NaN."""
        return self._candidates(cluster, table, self._judge_sparingly)

    def with_time(self, candidates: Candidates) -> Candidates:
        """What a sweep asks next, in one call for many blocks: the time of those that fit at even odds."""
        for cluster in np.unique(candidates.cluster).tolist():
            possible = candidates.fits | candidates.fits_at_even_odds
            rows = np.flatnonzero(possible & (candidates.cluster == cluster))
            candidates = self._with_time(cluster, candidates, rows, bounding_stages)
        return candidates

    def screen(self, cluster: int, table: StrategyTable) -> Screening:
        """Rules and memory alone, at even odds: whether a strategy can be a plan or a near miss at all, or one of its
        relatives that the formulas give no less."""
        problem = self.search.problems[cluster]
        broken = violations(problem, table)
        valid = np.flatnonzero(broken == 0)
        needed = np.zeros(len(table))
        if len(valid):
            needed[valid] = least_needed_bytes(problem, table.take(valid), bounding_stages, self.search.corrections)
        return Screening(broken, needed)

    def evaluate_strategies(self, cluster: int, strategies: Sequence[Mapping[str, Any]]) -> Candidates:
        """Strategies in the words of the contract."""
        return self.evaluate(cluster, self.resolve_strategies(cluster, strategies))

    def answers(self, cluster: int, table: StrategyTable) -> list[dict[str, Any]]:
        """The contract's Estimate of valid strategies."""
        search, problem = self.search, self.search.problems[cluster]
        scored = score(problem, table, memory_confidence=search.memory_confidence, corrections=search.corrections)
        return score_answers(problem, scored)

    def _candidates(
        self, cluster: int, table: StrategyTable, judge: Callable[[Problem, StrategyTable], Judgement]
    ) -> Candidates:
        """Rules, and memory of what breaks none."""
        problem = self.search.problems[cluster]
        broken = violations(problem, table)
        columns: dict[str, Any] = {name: np.full(len(table), np.nan) for name in _FIGURES}
        columns |= {name: np.zeros(len(table), dtype=np.bool_) for name in _MARKS}
        valid = np.flatnonzero(broken == 0)
        if len(valid):
            judgement = judge(problem, _taken(table, valid))
            for name in _JUDGED:
                columns[name][valid] = getattr(judgement, name)
        return Candidates(
            table=table,
            cluster=np.full(len(table), cluster, dtype=np.int64),
            violations=broken,
            **columns,
        )

    def _with_time(self, cluster: int, candidates: Candidates, rows: IntColumn, stages: Stages) -> Candidates:
        """Candidates, some rows with what follows from their time."""
        if not len(rows):
            return candidates
        problem, chosen = self.search.problems[cluster], _taken(candidates.table, rows)
        seconds = estimate_time(problem, chosen, stages(problem.model, chosen)).step_seconds
        if self.search.corrections is not None:
            seconds = seconds * self.search.corrections.step_time(problem, chosen).factor
        columns = {name: getattr(candidates, name).copy() for name in _TIMED}
        columns["step_seconds"][rows] = seconds
        columns["objective"][rows] = seconds * self.price(cluster)
        columns["in_time"][rows] = self._in_time(seconds)
        return replace(candidates, **columns)

    def _judge(self, problem: Problem, table: StrategyTable) -> Judgement:
        return judge(problem, table, all_stages, self.search.memory_confidence, self.search.corrections)

    def _judge_sparingly(self, problem: Problem, table: StrategyTable) -> Judgement:
        confidence, corrections = self.search.memory_confidence, self.search.corrections
        if corrections is None:
            return judge(problem, table, bounding_stages, confidence, None)
        peaks = self.search.objective == "pareto"
        return judge_sparingly(problem, table, bounding_stages, confidence, corrections, peaks=peaks)

    def _in_time(self, step_seconds: FloatColumn) -> BoolColumn:
        workload, deadline_days = self.search.workload, self.search.deadline_days
        if deadline_days is None or workload.training_tokens is None:
            return np.ones(len(step_seconds), dtype=np.bool_)
        steps = workload.training_tokens / workload.tokens
        in_time: BoolColumn = step_seconds * steps <= deadline_days * SECONDS_PER_DAY
        return in_time

    def price(self, index: int) -> float:
        """What a second of a whole cluster counts: itself, dollars, or joules at the GPUs' rated power."""
        cluster = self.search.clusters[index]
        if self.search.objective == "cost":
            return cluster.gpus * (cluster.usd_per_gpu_hour or 0.0) / SECONDS_PER_HOUR
        if self.search.objective == "energy":
            return cluster.gpus * cluster.gpu.tdp_watts
        return 1.0


def _taken(table: StrategyTable, rows: IntColumn) -> StrategyTable:
    return table if len(rows) == len(table) else table.take(rows)
