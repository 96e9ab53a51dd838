"""The one entry point: strategies in, time and memory out, invalid rows masked.

`estimate` answers every row of a table in order. Rows that break a rule keep their violations and have no figures.
`cost_models.answer` writes the result in the words of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.codes import CodeColumn
from cost_models.corrections import EstimateCorrections, MemoryCorrection, TimeCorrection
from cost_models.memory import Fit, estimate_memory, fit
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.rules import violations
from cost_models.stages import StageRows, all_stages
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable
from cost_models.time import estimate_time

BLOCK_ROWS: Final = 65_536
"""Rows scored in one NumPy pass: larger blocks fall out of the cache, smaller ones pay for the calls."""


@dataclass(frozen=True)
class Learned:
    """What measured runs said about v strategies."""

    version: int
    memory: MemoryCorrection
    time: TimeCorrection


@dataclass(frozen=True)
class Score:
    """Time and memory of v valid strategies, corrected where something was learned."""

    table: StrategyTable
    stages: StageRows
    memory: MemoryEstimate
    analytical_peak_bytes: FloatColumn
    """(m,) `memory.peak_bytes` before its correction: what the parts add up to."""
    time: TimeEstimate
    fit: Fit
    learned: Learned | None
    """None: formulas alone."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def step_seconds(self) -> FloatColumn:
        """(v,) seconds of one optimizer step."""
        return self.time.step_seconds

    @property
    def peak_bytes(self) -> FloatColumn:
        """(v,) peak of the fullest stage, as the device shows it."""
        return self.memory.peak_bytes[self.memory.fullest]

    @property
    def fits(self) -> BoolColumn:
        """(v,) whether the strategy fits at the confidence asked for."""
        return self.fit.fits

    @property
    def required_bytes(self) -> FloatColumn:
        """(v,) what must fit on the stage that needs most."""
        return self.fit.required_bytes


def score(
    problem: Problem, table: StrategyTable, *, memory_confidence: float, corrections: EstimateCorrections | None = None
) -> Score:
    """Score strategies that break no rule, all stages of each."""
    stages = all_stages(problem.model, table)
    memory = estimate_memory(problem, table, stages)
    time = estimate_time(problem, table, stages)
    peak_bytes = memory.peak_bytes
    if corrections is None:
        return Score(table, stages, memory, peak_bytes, time, fit(problem, memory, memory_confidence), None)
    learned = Learned(
        corrections.version, corrections.memory(problem, table, memory), corrections.step_time(problem, table)
    )
    memory, time = learned.memory.apply(memory), learned.time.apply(time)
    judged = fit(problem, memory, memory_confidence, learned.memory.error)
    return Score(table, stages, memory, peak_bytes, time, judged, learned)


@dataclass(frozen=True)
class Estimates:
    """n strategies in the order they were asked for."""

    problem: Problem
    table: StrategyTable
    violations: CodeColumn
    """(n,) 0 where the strategy is valid."""
    block: IntColumn
    """(n,) which of `scores` holds the row; -1 where invalid."""
    position: IntColumn
    """(n,) the row within it."""
    scores: tuple[Score, ...]

    def __len__(self) -> int:
        return len(self.table)

    def gather(self, column: str) -> FloatColumn:
        """A (v,) column of the scores as (n,), NaN where invalid."""
        result = np.full(len(self), np.nan)
        for index, scored in enumerate(self.scores):
            rows = np.flatnonzero(self.block == index)
            result[rows] = getattr(scored, column)[self.position[rows]]
        return result


def estimate(
    problem: Problem, table: StrategyTable, *, memory_confidence: float, corrections: EstimateCorrections | None = None
) -> Estimates:
    """Check and score every strategy of a table, all stages of each."""
    broken = violations(problem, table)
    valid = np.flatnonzero(broken == 0)
    block = np.full(len(table), -1, dtype=np.int64)
    position = np.zeros(len(table), dtype=np.int64)
    scores: list[Score] = []
    for begin in range(0, len(valid), BLOCK_ROWS):
        rows = valid[begin : begin + BLOCK_ROWS]
        block[rows] = len(scores)
        position[rows] = np.arange(len(rows))
        scores.append(score(problem, table.take(rows), memory_confidence=memory_confidence, corrections=corrections))
    return Estimates(problem, table, broken, block, position, tuple(scores))
