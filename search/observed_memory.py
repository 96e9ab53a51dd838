"""What was observed of a running job, and what it says about the same job and its neighbours.

The ratio of observed to predicted holds for this job; of a neighbour it holds the less, the more memory the two differ
by. Between runs of one job that differ in micro-batch and checkpointing only (2,730 pairs of the public runs of
nanotron and LitGPT), the ratios differ by a standard deviation of 0.17 x sqrt(|log of what is predicted of one over the
other|): 0.08 at 0.17, 0.11 at 0.37, 0.15 at 0.75, 0.21 at 1.4. These frameworks' predictions of unseen jobs deviate by
0.12, so that the variance grows with twice the square of that, up to a factor of e: there the errors of the two
predictions are independent, and what is left is their difference. Over these pairs the median error falls from 15 % to
7 % (nanotron) and from 5 % to 3 % (LitGPT) with the observation, and the bound at 0.9 holds for 88 % of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.corrections import STATISTICS, EstimateCorrections, MemoryCorrection, TimeCorrection
from cost_models.errors import InvalidInput
from cost_models.memory import estimate_memory
from cost_models.memory.error import ErrorDistribution, NormalError
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate
from cost_models.stages import all_stages
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.units import GIB

REPEATED_DEVIATION: Final = 0.01
"""Of log(peak of a later step / observed peak) of one job: what the allocator's timing and unequal batches move."""
GROWING_DEVIATION: Final = 0.05
"""The same while memory still grows: how far it will is not known."""
GROWTH_PER_LOG_MEMORY: Final = 2.0
"""Of the variance, over that of an unseen prediction (above)."""
ONE_DEVIATION: Final = 0.8413447460685429
"""Probability of a normal variable to lie below one standard deviation."""
TOTAL_SLACK: Final = 1.02
"""nvidia-smi counts a little more of a card than torch does (81,559 MiB against 79.2 GiB of an A100)."""
ROUNDING_BYTES: Final = 0.02 * GIB
"""By which allocated may exceed reserved: both are printed with two decimals."""
LATE_SHARE: Final = 0.25
"""Of the time, at the end: steady memory has its peak before."""
NOTABLE_GROWTH: Final = 1.01
AT_LIMIT: Final = 0.98
"""Of the capacity: the allocator has begun to give back what it caches, so that the device shows the card, not the
job."""
BASIS: Final = "the memory observed of this very job, and how far ratios of like jobs differ"


@dataclass(frozen=True)
class Sample:
    """One reading; None: not read."""

    seconds: float
    allocated: float | None
    reserved: float | None
    device: float | None
    """Bytes."""


@dataclass(frozen=True)
class Observation:
    """What a curve comes to: peaks in bytes, None where a figure was never read."""

    allocated: float | None
    reserved: float | None
    device: float | None
    growth_bytes_per_s: float
    """Of the peak towards the end; 0: steady."""
    at_limit: bool

    @property
    def idle_share(self) -> float:
        """Of what is reserved, not allocated at its peak; 0 where either is not known."""
        if self.allocated is None or not self.reserved:
            return 0.0
        return max(1.0 - self.allocated / self.reserved, 0.0)


def read_curve(samples: Sequence[Sample], problem: Problem) -> Observation:
    """Peaks and growth; raises InvalidInput naming the sample that cannot be."""
    if not samples:
        raise InvalidInput(("observed",), "empty", "needs at least one sample")
    _check(samples, problem)
    peaks = {name: _peak(samples, name) for name in STATISTICS}
    if all(peak is None for peak in peaks.values()):
        raise InvalidInput(("observed",), "nothing_observed", "needs a figure of allocated, reserved or device memory")
    shown = max(peaks["device"] or 0.0, peaks["reserved"] or 0.0)
    return Observation(
        **peaks,
        growth_bytes_per_s=_growth(samples, next(name for name in STATISTICS if peaks[name] is not None)),
        at_limit=shown >= AT_LIMIT * problem.cluster.capacity_bytes,
    )


def _check(samples: Sequence[Sample], problem: Problem) -> None:
    total = problem.cluster.gpu.memory_bytes
    before = -np.inf
    for index, sample in enumerate(samples):
        if sample.seconds < before:
            raise InvalidInput(("observed", index, "seconds"), "not_rising", "samples must be in the order of time")
        before = sample.seconds
        for name in STATISTICS:
            value = getattr(sample, name)
            if value is not None and value > total * TOTAL_SLACK:
                raise InvalidInput(
                    ("observed", index, f"{name}_gib"),
                    "above_device_memory",
                    f"{value / GIB:.2f} GiB are more than the {total / GIB:.2f} GiB of {problem.cluster.gpu.name}",
                )
        allocated, reserved = sample.allocated, sample.reserved
        if allocated is not None and reserved is not None and allocated > reserved + ROUNDING_BYTES:
            raise InvalidInput(
                ("observed", index, "allocated_gib"), "above_reserved", "allocated memory cannot exceed reserved memory"
            )


def _peak(samples: Sequence[Sample], name: str) -> float | None:
    found = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return max(found) if found and max(found) > 0 else None


def _growth(samples: Sequence[Sample], name: str) -> float:
    read = [(sample.seconds, value) for sample in samples if (value := getattr(sample, name)) is not None]
    begin, end = read[0][0], read[-1][0]
    late = end - LATE_SHARE * (end - begin)
    early_peak = max((value for seconds, value in read if seconds <= late), default=0.0)
    late_peak = max((value for seconds, value in read if seconds > late), default=0.0)
    if late_peak <= NOTABLE_GROWTH * early_peak:
        return 0.0
    return (late_peak - early_peak) / (LATE_SHARE * (end - begin))


@dataclass(frozen=True)
class ObservedCorrections:
    """Corrections of one job and its neighbours: what was learned, if anything, times observed over predicted."""

    base: EstimateCorrections | None
    observation: Observation
    required: float
    """Observed over predicted, of what must fit."""
    allocated: float
    reserved: float
    device: float
    """The same of the peaks; of one that was not observed, that of the nearest that was."""
    job_required_bytes: float
    """Predicted of the job that was observed, before the observation."""

    @property
    def version(self) -> int:
        """Of what was learned; 0: nothing."""
        return 0 if self.base is None else self.base.version

    def memory(self, problem: Problem, table: StrategyTable, memory: MemoryEstimate) -> MemoryCorrection:
        """Of the job itself exact but for what repeats of it differ by."""
        before = _base_memory(self.base, problem, table, memory)
        required = before.apply(memory).most_required_bytes
        distance = np.abs(np.log(required / self.job_required_bytes))
        own = GROWING_DEVIATION if self.observation.growth_bytes_per_s > 0 else REPEATED_DEVIATION
        unseen = unseen_deviation(before.error)
        variance = own**2 + GROWTH_PER_LOG_MEMORY * unseen**2 * np.minimum(distance, 1.0)
        return MemoryCorrection(
            allocated=before.allocated * self.allocated,
            reserved=before.reserved * self.reserved,
            device=before.device * self.device,
            required=before.required * self.required,
            error=NormalError(np.sqrt(variance)),
            basis=np.zeros(len(table), dtype=np.int64),
            bases=(BASIS,),
        )

    def step_time(self, problem: Problem, table: StrategyTable) -> TimeCorrection:
        """As learned: a memory curve says nothing about time."""
        if self.base is None:
            return TimeCorrection(np.ones(len(table)), np.zeros(len(table), dtype=np.int64), np.zeros(len(table)))
        return self.base.step_time(problem, table)


def unseen_deviation(error: ErrorDistribution) -> FloatColumn:
    """(n,) upper standard deviation of a prediction's logarithm, at least that of a repeated run."""
    deviation: FloatColumn = np.maximum(np.log(error.bound(ONE_DEVIATION)), REPEATED_DEVIATION)
    return deviation


def observe(
    problem: Problem, job: StrategyTable, observation: Observation, base: EstimateCorrections | None
) -> ObservedCorrections:
    """Corrections from what was observed of a valid strategy: a table of one row."""
    analytical = estimate_memory(problem, job, all_stages(problem.model, job))
    predicted = _base_memory(base, problem, job, analytical).apply(analytical)
    fullest = predicted.fullest[0]
    figures = {
        "allocated": float(predicted.peak_allocated_bytes[fullest]),
        "reserved": float(predicted.peak_reserved_bytes[fullest]),
        "device": float(predicted.peak_bytes[fullest]),
    }
    ratios = {name: seen / figures[name] for name in STATISTICS if (seen := getattr(observation, name)) is not None}
    allocated = ratios.get("allocated", ratios.get("reserved", ratios.get("device", 1.0)))
    reserved = ratios.get("reserved", ratios.get("device", allocated))
    device = ratios.get("device", reserved)
    required = float(predicted.most_required_bytes[0])
    # What lies beside the allocated tensors (context, communicators, what cannot be given back) stays as predicted.
    if "allocated" in ratios:
        seen_required = required + (allocated - 1.0) * min(figures["allocated"], required)
    else:
        seen_required = required * allocated
    # The job runs: whatever was predicted of it fits the card.
    seen_required = min(seen_required, problem.cluster.capacity_bytes)
    return ObservedCorrections(base, observation, seen_required / required, allocated, reserved, device, required)


def _base_memory(
    base: EstimateCorrections | None, problem: Problem, table: StrategyTable, memory: MemoryEstimate
) -> MemoryCorrection:
    if base is not None:
        return base.memory(problem, table, memory)
    one, none = np.ones(len(table)), np.full(len(table), -1, dtype=np.int64)
    return MemoryCorrection(one, one, one, one, NormalError(memory.relative_error), none, ())
