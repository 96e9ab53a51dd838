"""Whether strategies fit: by the formulas, or by what was learned, which is asked only where it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.corrections import Corrections
from cost_models.memory import Fit, estimate_memory, fit, memory_needs, others_suffice
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, MemoryNeeds
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable

EVEN_ODDS: Final = 0.5
ROUNDING: Final = 1e-9
"""Relative: a product of factors is not taken for decided where rounding might decide it."""

Stages = Callable[[ModelArchitecture, StrategyTable], StageRows]


@dataclass(frozen=True)
class Judgement:
    """n valid strategies."""

    peak_bytes: FloatColumn
    """Of the fullest stage, as the device shows it."""
    required_upper_bytes: FloatColumn
    needed_bytes: FloatColumn
    """Of a GPU: the same, or what setting up takes where that is more."""
    fits: BoolColumn
    fits_at_even_odds: BoolColumn


def judge(
    problem: Problem,
    table: StrategyTable,
    stages: Stages,
    memory_confidence: float,
    corrections: Corrections | None,
) -> Judgement:
    """Every strategy, exactly."""
    if corrections is None:
        needs = memory_needs(problem, table, stages(problem.model, table))
        asked, even = (fit(problem, needs, confidence) for confidence in (memory_confidence, EVEN_ODDS))
        return _judgement(needs, needs.peak_bytes, asked, even)
    analytical = estimate_memory(problem, table, stages(problem.model, table))
    correction = corrections.memory(problem, table, analytical)
    memory = correction.apply(analytical)
    asked, even = (fit(problem, memory, confidence, correction.error) for confidence in (memory_confidence, EVEN_ODDS))
    return _judgement(memory, memory.peak_bytes[memory.fullest], asked, even)


def judge_sparingly(
    problem: Problem,
    table: StrategyTable,
    stages: Stages,
    memory_confidence: float,
    corrections: Corrections,
    *,
    peaks: bool,
) -> Judgement:
    """What fits, exactly: what was learned is asked only about strategies whose fit hangs on it. What others need is
    the nearest that it can be to the capacity.

    `peaks`: of all that may fit, exactly too; without, they are those of the formulas.
    """
    needs = memory_needs(problem, table, stages(problem.model, table))
    required, capacity = needs.most_required_bytes, problem.cluster.capacity_bytes
    least, most = _required_range(problem, table, corrections, memory_confidence, required)
    least_even, most_even = _required_range(problem, table, corrections, EVEN_ODDS, required)
    undecided = ((least <= capacity) & (capacity < most)) | ((least_even <= capacity) & (capacity < most_even))
    if peaks:
        undecided |= least_even <= capacity
    fits_others = others_suffice(problem, needs)
    nearest = np.where(most <= capacity, most, least)
    found = Judgement(
        peak_bytes=needs.peak_bytes,
        required_upper_bytes=nearest,
        needed_bytes=np.maximum(nearest, needs.device_load_peak_bytes),
        fits=(most <= capacity) & fits_others,
        fits_at_even_odds=(most_even <= capacity) & fits_others,
    )
    rows = np.flatnonzero(undecided)
    if len(rows):
        exact = judge(problem, table.take(rows), stages, memory_confidence, corrections)
        for name, values in vars(exact).items():
            # Peaks of some rows with and of others without corrections would be no order.
            if peaks or name != "peak_bytes":
                getattr(found, name)[rows] = values
    return found


def least_needed_bytes(
    problem: Problem, table: StrategyTable, stages: Stages, corrections: Corrections | None
) -> FloatColumn:
    """(n,) of a GPU at even odds; with corrections the least that they can make of it."""
    needs = memory_needs(problem, table, stages(problem.model, table))
    if corrections is None:
        required = fit(problem, needs, EVEN_ODDS).required_upper_bytes
    else:
        required, _ = _required_range(problem, table, corrections, EVEN_ODDS, needs.most_required_bytes)
    return np.maximum(required, needs.device_load_peak_bytes)


def _judgement(memory: MemoryEstimate | MemoryNeeds, peak_bytes: FloatColumn, asked: Fit, even: Fit) -> Judgement:
    needed = np.maximum(asked.required_upper_bytes, memory.device_load_peak_bytes)
    return Judgement(peak_bytes, asked.required_upper_bytes, needed, asked.fits, even.fits)


def _required_range(
    problem: Problem, table: StrategyTable, corrections: Corrections, confidence: float, required: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """Within what the bound of the corrected requirement lies, bytes."""
    factors = corrections.requirement_range(problem, table, confidence)
    return required * factors.least * (1.0 - ROUNDING), required * factors.most * (1.0 + ROUNDING)
