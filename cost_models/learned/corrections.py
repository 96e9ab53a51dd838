"""One version of what was learned, as the cost core takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.corrections import MemoryCorrection, RequirementRange, TimeCorrection
from cost_models.learned.bounds import LEVELS, normal_table
from cost_models.learned.features import stage_features, stage_figures
from cost_models.learned.peak_memory import MemoryModel
from cost_models.learned.step_time import TimeFactors
from cost_models.memory.error import ErrorDistribution, NormalError, TabulatedError
from cost_models.memory.facts import number
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate
from cost_models.strategy import FRAMEWORKS, FloatColumn, IntColumn, StrategyTable

_FRAMEWORKS: Final = len(FRAMEWORKS)
_ROUNDING: Final = 1e-9
"""By which a range is wider than the arithmetic that it bounds."""


@dataclass(frozen=True)
class LearnedCorrections:
    """Implements `cost_models.corrections.Corrections`."""

    version: int
    peak_memory: MemoryModel
    times: TimeFactors

    def memory(self, problem: Problem, table: StrategyTable, memory: MemoryEstimate) -> MemoryCorrection:
        """One factor a strategy and statistic, from its fullest stage.

        What is required is what is allocated, corrected as such, and what comes beside it (fragmentation that cannot
        be given back, context, communicators), which is not.
        """
        model, fullest = self.peak_memory, memory.fullest
        cluster = model.cluster_number(problem.cluster.identity)
        basis = self._basis(problem, table)
        figures = stage_figures(memory, fullest)
        if model.generic is None and not model.own:
            factors = np.ones((len(table), 3))
        else:
            features = stage_features(problem, table, memory, fullest)
            factors = np.exp(model.predict(features, table.framework, cluster))
        device = figures[:, 2] * factors[:, 2]
        # Whatever each statistic taught on its own: allocated <= reserved <= device.
        reserved = figures[:, 1] * factors[:, 1]
        allocated = figures[:, 0] * factors[:, 0]
        reserved = np.maximum(reserved, allocated)
        device = np.maximum(device, reserved)
        share = np.minimum(figures[:, 0] / memory.required_bytes[fullest], 1.0)
        return MemoryCorrection(
            allocated=factors[:, 0],
            reserved=reserved / figures[:, 1],
            device=device / figures[:, 2],
            required=1.0 + share * (factors[:, 0] - 1.0),
            error=self._error(table, basis),
            basis=basis,
            bases=tuple(found.sentence for found in model.bases),
        )

    def requirement_range(self, problem: Problem, table: StrategyTable, memory_confidence: float) -> RequirementRange:
        """From the ranges that corrections are kept in, and the bounds of the bases: nothing is predicted."""
        model = self.peak_memory
        margin = self._error(table, self._basis(problem, table)).bound(memory_confidence)
        cluster = model.cluster_number(problem.cluster.identity)
        ranges = np.exp([model.range(framework, cluster) for framework in range(_FRAMEWORKS)])[table.framework]
        return RequirementRange(
            least=np.minimum(ranges[:, 0], 1.0) * margin * (1.0 - _ROUNDING),
            most=np.maximum(ranges[:, 1], 1.0) * margin * (1.0 + _ROUNDING),
        )

    def step_time(self, problem: Problem, table: StrategyTable) -> TimeCorrection:
        """The factor of the problem's cluster, by framework."""
        identity = problem.cluster.identity
        factor, deviation = np.ones(_FRAMEWORKS), np.full(_FRAMEWORKS, self.times.between)
        runs = np.zeros(_FRAMEWORKS, dtype=np.int64)
        for framework in range(_FRAMEWORKS):
            if found := self.times.by_group.get((identity, framework)):
                factor[framework], deviation[framework] = np.exp(found.log_factor), found.deviation
                runs[framework] = found.runs
        which = table.framework
        return TimeCorrection(factor=factor[which], runs=runs[which], deviation=deviation[which])

    def _basis(self, problem: Problem, table: StrategyTable) -> IntColumn:
        """(n,) index of the best basis of each strategy, -1: the formulas alone."""
        model, eager = self.peak_memory, problem.workload.attention == "eager"
        cluster = model.cluster_number(problem.cluster.identity)
        of_framework = [model.basis(framework, cluster, eager=eager) for framework in range(_FRAMEWORKS)]
        basis: IntColumn = np.array(of_framework, dtype=np.int64)[table.framework]
        return basis

    def _error(self, table: StrategyTable, basis: IntColumn) -> ErrorDistribution:
        """Of the bases; formulas alone have the error that their framework states."""
        stated = number(table, "memory_error")
        if not (basis >= 0).any():
            return NormalError(stated)
        tables = [found.errors for found in self.peak_memory.bases]
        group = basis.copy()
        for deviation in np.unique(stated[basis < 0]):
            group[(basis < 0) & (stated == deviation)] = len(tables)
            tables.append(normal_table(float(deviation)))
        deviations: FloatColumn = np.stack(tables)
        return TabulatedError(LEVELS, deviations, group)
