"""What measured runs say about the formulas, as the cost models take it: factors on memory and on step time.

The cost core knows this protocol only: `cost_models.learned` answers it from logged runs; without, the formulas stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from cost_models.memory.error import ErrorDistribution
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable

STATISTICS: Final = ("allocated", "reserved", "device")
"""What of a peak is measured and corrected; in the order of `run_records.PEAKS`."""


@dataclass(frozen=True)
class MemoryCorrection:
    """n strategies: factors on the figures of all their stages; 1 where nothing was learned."""

    allocated: FloatColumn
    """On `peak_allocated_bytes`."""
    reserved: FloatColumn
    """On `peak_reserved_bytes`; never brings it below allocated."""
    device: FloatColumn
    """On `peak_bytes`; never brings it below reserved."""
    required: FloatColumn
    """On `required_bytes`."""
    error: ErrorDistribution
    """Of the corrected requirement."""
    basis: IntColumn
    """(n,) index into `bases`; -1 where nothing was learned and the formulas alone stand."""
    bases: tuple[str, ...]
    """What the bound rests on, as the end of the sentence "its bound rests on ..."."""

    def apply(self, memory: MemoryEstimate) -> MemoryEstimate:
        """The same estimate, corrected; its parts still add up to the peak before."""
        row = memory.stages.row
        device = memory.peak_bytes * self.device[row]
        # One factor of each for all stages: on those that are less full than the fullest, the order may need help.
        reserved = np.minimum(memory.peak_reserved_bytes * self.reserved[row], device)
        allocated = np.minimum(memory.peak_allocated_bytes * self.allocated[row], reserved)
        return replace(
            memory,
            peak_allocated_bytes=allocated,
            peak_reserved_bytes=reserved,
            peak_bytes=device,
            required_bytes=memory.required_bytes * self.required[row],
        )


@dataclass(frozen=True)
class RequirementRange:
    """n strategies: within what the corrected requirement, its bound at a confidence included, can lie."""

    least: FloatColumn
    """Factor on the analytical requirement."""
    most: FloatColumn


@dataclass(frozen=True)
class TimeCorrection:
    """n strategies."""

    factor: FloatColumn
    """On every part of the step; 1 where nothing was learned."""
    runs: IntColumn
    """How many runs of this cluster and framework stand behind the factor."""
    deviation: FloatColumn
    """Standard deviation of its logarithm."""

    def apply(self, time: TimeEstimate) -> TimeEstimate:
        """The same estimate, corrected: every part of the step alike."""
        return replace(
            time,
            parts={name: seconds * self.factor for name, seconds in time.parts.items()},
            step_seconds=time.step_seconds * self.factor,
        )


class EstimateCorrections(Protocol):
    """What corrects single estimates."""

    @property
    def version(self) -> int:
        """The number of the version, as `GET /v1/memory-models` lists it."""
        ...

    def memory(self, problem: Problem, table: StrategyTable, memory: MemoryEstimate) -> MemoryCorrection:
        """Corrections of valid strategies from their analytical estimate: of all stages, or of those that bound them
        (`stages.bounding_stages`). What is answered depends on the fullest stage only, so that both say the same."""
        ...

    def step_time(self, problem: Problem, table: StrategyTable) -> TimeCorrection:
        """Corrections of the step time; one factor for all strategies of a framework, whose order stays as it is."""
        ...


class Corrections(EstimateCorrections, Protocol):
    """One version of what was learned; serves sweeps too."""

    def requirement_range(self, problem: Problem, table: StrategyTable, memory_confidence: float) -> RequirementRange:
        """Cheap bounds of `memory(...).required * error.bound(...)`: they hold for every estimate of these strategies,
        so that a sweep asks for the correction only where it decides.

        The same for all strategies of one framework that differ in micro-batch size, checkpointing and offload only:
        a sweep rules out a layout by its leanest member."""
        ...
