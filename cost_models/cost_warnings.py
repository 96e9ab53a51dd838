"""Warnings that follow from the figures of an estimate (those that follow from the layout alone: `rules`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from cost_models.codes import WARNINGS, CodeColumn, bit
from cost_models.estimate import Score
from cost_models.problem import Problem
from cost_models.provenance import beyond_runs, time_basis
from cost_models.strategy import FRAMEWORKS, OFFLOADS, PRECISIONS, BoolColumn, FloatColumn
from cost_models.time import estimate_time
from cost_models.units import GIB

LOGITS_SHARE: Final = 1 / 3
"""Of the peak: above it a fused loss saves more than any other single change."""
NVME_SHARE: Final = 1 / 4
"""Of the step spent waiting for offloaded data."""
EXPERT_IMBALANCE: Final = 1.1
"""Hottest expert over the mean: beyond it the hottest rank stretches the step by more than a tenth of the experts."""
HOST_MOMENTS: Final[Mapping[str, str]] = {
    "steady": "in steady training",
    "load_peak": "while the model is loaded",
    "checkpoint_peak": "while a checkpoint is saved",
}
NEAR_LIMIT_PROBABILITY: Final = 0.01
"""Probability of running out of memory from which a plan that fits is marked."""


@dataclass(frozen=True)
class CostWarnings:
    """Of v strategies that break no rule."""

    problem: Problem
    score: Score

    @cached_property
    def mask(self) -> CodeColumn:
        """(v,) bits over WARNINGS."""
        memory, table, score = self.score.memory, self.score.table, self.score
        host = self.problem.cluster.host
        offloads = table.offload != OFFLOADS.index("none")
        flags: dict[str, BoolColumn] = {
            "logits_dominate": memory.parts["logits"][memory.fullest] > LOGITS_SHARE * score.peak_bytes,
            "near_memory_limit": score.fit.fits & (score.fit.oom_probability >= NEAR_LIMIT_PROBABILITY),
            "nvme_slow": (table.offload == OFFLOADS.index("nvme"))
            & (score.time.parts["offload"] > NVME_SHARE * score.step_seconds),
            "experts_imbalanced": (table.expert_parallel_size > 1)
            & (self.problem.workload.expert_imbalance > EXPERT_IMBALANCE),
            "extrapolated": _extrapolated(self.problem)[table.framework, table.precision],
        }
        if host is None:
            flags["host_unknown"] = offloads
        else:
            needed = np.max(list(memory.host_bytes_per_node.values()), axis=0)
            short = needed > host.memory_bytes + host.cxl_bytes
            flags["host_memory_short"] = short | (memory.nvme_bytes_per_node > host.nvme_bytes)
        mask = np.zeros(len(score), dtype=np.uint64)
        for code, where in flags.items():
            mask |= np.where(where, bit(WARNINGS, code), np.uint64(0))
        return mask

    def explain(self, row: int, code: str) -> str:
        """One warning of a strategy in words, with its figures."""
        words = {
            "logits_dominate": self._logits,
            "near_memory_limit": self._near_limit,
            "nvme_slow": self._nvme,
            "experts_imbalanced": self._experts,
            "host_unknown": self._unknown_host,
            "host_memory_short": self._short_host,
            "extrapolated": self._beyond,
        }
        return words[code](row)

    def _logits(self, row: int) -> str:
        memory, stage = self.score.memory, int(self.score.memory.fullest[row])
        share = memory.parts["logits"][stage] / memory.peak_bytes[stage]
        return (
            f"logits and loss take {share:.0%} of the peak ({memory.parts['logits'][stage] / GIB:.1f} GiB): a fused or "
            "chunked loss, or a smaller micro-batch, helps most"
        )

    def _near_limit(self, row: int) -> str:
        return (
            f"needs {self.score.required_bytes[row] / GIB:.1f} of {self.problem.cluster.capacity_bytes / GIB:.1f} GiB: "
            f"the probability of running out of memory is {self.score.fit.oom_probability[row]:.1%}"
        )

    def _nvme(self, row: int) -> str:
        waiting, step = float(self.score.time.parts["offload"][row]), float(self.score.step_seconds[row])
        times = waiting * (1 / NVME_SHARE - 1) / (step - waiting)
        return (
            f"{waiting:.1f} of {step:.1f} s a step wait for the NVMe drives of a node: drives {times:.1f} times as "
            "fast would bring that below a quarter"
        )

    def _experts(self, row: int) -> str:
        balanced, step = self._balanced_seconds[row], self.score.step_seconds[row]
        return (
            f"the hottest expert gets {self.problem.workload.expert_imbalance:g} times the mean: the other ranks of "
            f"expert_parallel_size {self.score.table.expert_parallel_size[row]} wait for it; with balanced experts a "
            f"step would take {balanced:.3g} s instead of {step:.3g} ({balanced / step - 1:+.1%})"
        )

    @cached_property
    def _balanced_seconds(self) -> FloatColumn:
        """(v,) of a step if every expert got as many tokens."""
        even = replace(self.problem, workload=replace(self.problem.workload, expert_imbalance=1.0))
        time = estimate_time(even, self.score.table, self.score.stages)
        learned = self.score.learned
        return (time if learned is None else learned.time.apply(time)).step_seconds

    def _unknown_host(self, row: int) -> str:
        del row  # the same for all
        return "the cluster's host is not described: whether the offloaded bytes fit is unknown, so this does not count"

    def _short_host(self, row: int) -> str:
        host, memory = self.problem.cluster.host, self.score.memory
        assert host is not None  # the code is set for a known host only
        room = host.memory_bytes + host.cxl_bytes
        needs = {name: float(values[row]) for name, values in memory.host_bytes_per_node.items()}
        short = []
        if max(needs.values()) > room:
            moments = ", ".join(f"{needs[name] / GIB:,.0f} {words}" for name, words in HOST_MOMENTS.items())
            short.append(f"a node has {room / GIB:,.0f} GiB of host memory and needs {moments}")
        nvme = float(memory.nvme_bytes_per_node[row])
        if nvme > host.nvme_bytes:
            short.append(f"a node has {host.nvme_bytes / GIB:,.0f} GiB of NVMe and needs {nvme / GIB:,.0f}")
        return "; ".join(short)

    def _beyond(self, row: int) -> str:
        gpu = self.problem.cluster.gpu
        if gpu.generation is None:
            return f"{gpu.name} is not in the catalog: time and memory are priced from its datasheet alone"
        framework, precision = int(self.score.table.framework[row]), int(self.score.table.precision[row])
        return f"step time: {'; '.join(beyond_runs(self.problem, FRAMEWORKS[framework], PRECISIONS[precision]))}"


def _extrapolated(problem: Problem) -> npt.NDArray[np.bool_]:
    """(frameworks, precisions): whether the formulas' step time is extrapolated, however many runs correct it."""
    return np.array(
        [
            [time_basis(problem, framework, precision) == "extrapolated" for precision in range(len(PRECISIONS))]
            for framework in range(len(FRAMEWORKS))
        ]
    )
