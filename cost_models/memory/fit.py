"""Whether a strategy fits: what it requires and the error of that figure, against the capacity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.memory.error import ErrorDistribution, NormalError
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, MemoryNeeds
from cost_models.strategy import BoolColumn, FloatColumn


@dataclass(frozen=True)
class Fit:
    """n strategies."""

    required_bytes: FloatColumn
    """Of the stage that needs most."""
    capacity_bytes: float
    required_upper_bytes: FloatColumn
    """Bound of it at the confidence asked for."""
    fits: BoolColumn
    error: ErrorDistribution
    """Of `required_bytes`."""

    @cached_property
    def oom_probability(self) -> FloatColumn:
        """P(required > capacity)."""
        return self.error.exceedance(np.log(self.capacity_bytes / self.required_bytes))


def fit(
    problem: Problem,
    memory: MemoryEstimate | MemoryNeeds,
    memory_confidence: float,
    error: ErrorDistribution | None = None,
) -> Fit:
    """Judge each strategy on the stage that needs most, its load peak, and the host's memory and NVMe.

    `memory_confidence` lies strictly between 0 and 1. `error` of the requirement; None: what the formulas miss by.
    """
    required = memory.most_required_bytes
    capacity = problem.cluster.capacity_bytes
    error = error or NormalError(memory.relative_error)
    upper = required * error.bound(memory_confidence)
    fits = (upper <= capacity) & others_suffice(problem, memory)
    return Fit(required, capacity, upper, fits, error)


def others_suffice(problem: Problem, memory: MemoryEstimate | MemoryNeeds) -> BoolColumn:
    """(n,) whether all fits besides the step's peak: setting up on the device, the host's memory, its NVMe."""
    return (memory.device_load_peak_bytes <= problem.cluster.capacity_bytes) & _host_suffices(problem, memory)


def _host_suffices(problem: Problem, memory: MemoryEstimate | MemoryNeeds) -> BoolColumn:
    steady, nvme = memory.host_bytes_per_node["steady"], memory.nvme_bytes_per_node
    host = problem.cluster.host
    if host is None:
        return (steady <= 0) & (nvme <= 0)
    ram = host.memory_bytes + host.cxl_bytes
    enough = nvme <= host.nvme_bytes
    for needed in memory.host_bytes_per_node.values():
        enough &= needed <= ram
    return enough
