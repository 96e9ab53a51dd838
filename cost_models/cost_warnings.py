"""Warnings that follow from the figures of an estimate (those that follow from the layout alone: `rules`)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cost_models.codes import WARNINGS, CodeColumn, bit
from cost_models.estimate import Score
from cost_models.problem import Problem
from cost_models.provenance import beyond_runs, time_basis
from cost_models.strategy import FRAMEWORKS, OFFLOADS, PRECISIONS, BoolColumn
from cost_models.units import GIB

LOGITS_SHARE: Final = 1 / 3
"""Of the peak: above it a fused loss saves more than any other single change."""
NVME_SHARE: Final = 1 / 4
"""Of the step spent waiting for offloaded data."""
NEAR_LIMIT_PROBABILITY: Final = 0.01
"""Probability of running out of memory from which a plan that fits is marked."""


def cost_warnings(problem: Problem, score: Score) -> CodeColumn:
    """(v,) bit mask over WARNINGS."""
    memory, table = score.memory, score.table
    host = problem.cluster.host
    offloads = table.offload != OFFLOADS.index("none")
    flags: dict[str, BoolColumn] = {
        "logits_dominate": memory.parts["logits"][memory.fullest] > LOGITS_SHARE * score.peak_bytes,
        "near_memory_limit": score.fit.fits & (score.fit.oom_probability >= NEAR_LIMIT_PROBABILITY),
        "nvme_slow": (table.offload == OFFLOADS.index("nvme"))
        & (score.time.parts["offload"] > NVME_SHARE * score.step_seconds),
        "extrapolated": _extrapolated(problem)[table.framework, table.precision],
    }
    if host is None:
        flags["host_unknown"] = offloads
    else:
        needed = np.max(list(memory.host_bytes_per_node.values()), axis=0)
        flags["host_memory_short"] = needed > host.memory_bytes + host.cxl_bytes
    mask = np.zeros(len(score), dtype=np.uint64)
    for code, where in flags.items():
        mask |= np.where(where, bit(WARNINGS, code), np.uint64(0))
    return mask


def _extrapolated(problem: Problem) -> npt.NDArray[np.bool_]:
    """(frameworks, precisions): whether the formulas' step time is extrapolated, however many runs correct it."""
    return np.array(
        [
            [time_basis(problem, framework, precision) == "extrapolated" for precision in range(len(PRECISIONS))]
            for framework in range(len(FRAMEWORKS))
        ]
    )


def explain_cost_warning(problem: Problem, score: Score, row: int, code: str) -> str:
    """One warning of `cost_warnings` in words, with its figures."""
    memory, stage = score.memory, int(score.memory.fullest[row])
    if code == "logits_dominate":
        share = memory.parts["logits"][stage] / memory.peak_bytes[stage]
        return (
            f"logits and loss take {share:.0%} of the peak ({memory.parts['logits'][stage] / GIB:.1f} GiB): a fused or "
            "chunked loss, or a smaller micro-batch, helps most"
        )
    if code == "near_memory_limit":
        return (
            f"needs {score.required_bytes[row] / GIB:.1f} of {problem.cluster.capacity_bytes / GIB:.1f} GiB: the "
            f"probability of running out of memory is {score.fit.oom_probability[row]:.1%}"
        )
    if code == "nvme_slow":
        waiting = score.time.parts["offload"][row]
        return f"{waiting:.1f} of {score.step_seconds[row]:.1f} s a step wait for the NVMe drives"
    if code == "host_unknown":
        return "the cluster's host is not described: whether the offloaded bytes fit is unknown, so this does not count"
    if code == "host_memory_short":
        host = problem.cluster.host
        assert host is not None  # the code is set for a known host only
        moment, needed = max(
            ((name, float(values[row])) for name, values in memory.host_bytes_per_node.items()), key=lambda x: x[1]
        )
        return (
            f"a node needs {needed / GIB:.0f} GiB of host memory ({moment.replace('_', ' ')}) and has "
            f"{(host.memory_bytes + host.cxl_bytes) / GIB:.0f}"
        )
    if problem.cluster.gpu.generation is None:
        return f"{problem.cluster.gpu.name} is not in the catalog: time and memory are priced from its datasheet alone"
    framework, precision = int(score.table.framework[row]), int(score.table.precision[row])
    return f"step time: {'; '.join(beyond_runs(problem, FRAMEWORKS[framework], PRECISIONS[precision]))}"
