"""Corrections written by hand, as unlike a smooth model as the protocol allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cost_models.corrections import MemoryCorrection, RequirementRange, TimeCorrection
from cost_models.memory.error import NormalError, TabulatedError
from cost_models.memory.facts import number
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate
from cost_models.strategy import FRAMEWORKS, FloatColumn, IntColumn, StrategyTable

LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
DEVIATIONS = np.array([[-0.2, -0.05, 0.01, 0.04, 0.1, 0.3], [-0.3, -0.2, -0.02, 0.15, 0.2, 0.25]])


def jumps(table: StrategyTable, seed: int) -> FloatColumn:
    """(n,) in [0, 1): another number for every micro-batch, checkpointing and offload, in no order."""
    mixed = (
        table.micro_batch_size * 7919
        + table.activation_checkpointing * 104729
        + table.checkpointed_layers * 1299709
        + table.offload * 15485863
        + table.tensor_parallel_size * 32452843
        + seed * 49979687
    )
    share: FloatColumn = (mixed * 2654435761 % 2**32) / 2**32
    return share


@dataclass(frozen=True)
class JumpingCorrections:
    """Factors on the requirement that jump between `least` and `most`, errors and time factors by framework."""

    least: float = 0.7
    most: float = 1.5
    seed: int = 0
    version: int = 7
    time_factors: Mapping[str, float] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    """How many strategies each call of `memory` was about."""

    def factor(self, table: StrategyTable) -> FloatColumn:
        factor: FloatColumn = self.least + (self.most - self.least) * jumps(table, self.seed)
        return factor

    def error(self, table: StrategyTable) -> TabulatedError:
        return TabulatedError(LEVELS, DEVIATIONS, self.group(table))

    def group(self, table: StrategyTable) -> IntColumn:
        return np.where(table.is_choice("framework", "fsdp2"), 1, 0)

    def memory(self, problem: Problem, table: StrategyTable, memory: MemoryEstimate) -> MemoryCorrection:
        del problem, memory
        self.asked.append(len(table))
        factor = self.factor(table)
        return MemoryCorrection(
            allocated=factor,
            reserved=factor * 1.02,
            device=factor * 1.05,
            required=factor,
            error=self.error(table),
            basis=self.group(table),
            bases=("40 runs of megatron-lm", "12 own runs"),
        )

    def requirement_range(self, problem: Problem, table: StrategyTable, memory_confidence: float) -> RequirementRange:
        del problem
        bound = self.error(table).bound(memory_confidence)
        return RequirementRange(self.least * bound, self.most * bound)

    def step_time(self, problem: Problem, table: StrategyTable) -> TimeCorrection:
        del problem
        factors = np.array([self.time_factors.get(name, 1.0) for name in FRAMEWORKS])[table.framework]
        runs = np.array([5 if name in self.time_factors else 0 for name in FRAMEWORKS])[table.framework]
        return TimeCorrection(factors, runs, np.where(runs > 0, 0.05, 0.2))


@dataclass(frozen=True)
class NoCorrections:
    """A version that has learned nothing: all its factors are 1, its error that of the formulas."""

    version: int = 1

    def memory(self, problem: Problem, table: StrategyTable, memory: MemoryEstimate) -> MemoryCorrection:
        del problem
        ones, error = np.ones(len(table)), _of_formulas(table)
        assert (error.deviation == memory.relative_error).all()
        return MemoryCorrection(ones, ones, ones, ones, error, np.full(len(table), -1), ())

    def requirement_range(self, problem: Problem, table: StrategyTable, memory_confidence: float) -> RequirementRange:
        del problem
        bound = _of_formulas(table).bound(memory_confidence)
        return RequirementRange(bound, bound)

    def step_time(self, problem: Problem, table: StrategyTable) -> TimeCorrection:
        del problem
        ones = np.ones(len(table))
        return TimeCorrection(ones, np.zeros(len(table), dtype=np.int64), ones)


def _of_formulas(table: StrategyTable) -> NormalError:
    return NormalError(number(table, "memory_error"))
