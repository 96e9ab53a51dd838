"""An estimate in the words and units of the contract: plain values, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from cost_models.codes import VIOLATIONS, WARNINGS, decode
from cost_models.cost_warnings import CostWarnings
from cost_models.distinct import distinct_rows
from cost_models.estimate import Estimates, Score
from cost_models.problem import Problem
from cost_models.provenance import Taught, provenance
from cost_models.results import HOST_PARTS, MEMORY_PARTS, PEAK_MOMENTS, TIME_PARTS
from cost_models.rules import explain_violations, explain_warnings, placement_warnings
from cost_models.strategy import FloatColumn
from cost_models.units import GIB, JOULES_PER_KWH, SECONDS_PER_DAY, SECONDS_PER_HOUR, TERA

DECIMALS: Final = 9
"""About a byte of a GiB, and a nanosecond: parts of the smallest step still add up to it."""


def full_answers(estimates: Estimates) -> list[dict[str, Any]]:
    """The contract's Estimate of every strategy, in order."""
    writers = [_ScoreWriter(estimates.problem, score) for score in estimates.scores]
    blocks, positions = estimates.block.tolist(), estimates.position.tolist()
    return [
        writers[block].full(position) if block >= 0 else _invalid(estimates, row)
        for row, (block, position) in enumerate(zip(blocks, positions, strict=True))
    ]


def summary_answers(estimates: Estimates) -> list[dict[str, Any]]:
    """`valid, fits, step_seconds, peak_gib, violations` (codes) of every strategy, in order."""
    step_seconds = _plain(estimates.gather("step_seconds"))
    peak_gib = _plain(estimates.gather("peak_bytes") / GIB)
    fits = estimates.gather("fits") > 0
    return [
        {
            "valid": mask == 0,
            "fits": fit if mask == 0 else None,
            "step_seconds": seconds if mask == 0 else None,
            "peak_gib": gib if mask == 0 else None,
            "violations": decode(VIOLATIONS, mask),
        }
        for mask, fit, seconds, gib in zip(
            estimates.violations.tolist(), fits.tolist(), step_seconds, peak_gib, strict=True
        )
    ]


def score_answers(problem: Problem, score: Score) -> list[dict[str, Any]]:
    """The contract's Estimate of strategies that are known to be valid."""
    writer = _ScoreWriter(problem, score)
    return [writer.full(row) for row in range(len(score))]


def _invalid(estimates: Estimates, row: int) -> dict[str, Any]:
    mask = int(estimates.violations[row])
    broken = explain_violations(estimates.problem, estimates.table, row, mask)
    return {
        "strategy": estimates.table.row(row),
        "valid": False,
        "fits": None,
        "violations": [{"code": code, "message": message} for code, message in broken],
        "warnings": [],
        "memory": None,
        "time": None,
        "throughput": None,
        "cost": None,
        "provenance": None,
    }


def _plain(column: FloatColumn) -> list[float]:
    plain: list[float] = np.round(column, DECIMALS).tolist()
    return plain


def _gib(columns: Mapping[str, FloatColumn], names: tuple[str, ...]) -> list[dict[str, float]]:
    """Named byte columns as one dictionary a row, in GiB."""
    lists = [_plain(columns[name] / GIB) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def _taught(score: Score) -> list[Taught] | list[None]:
    """What logged runs say about each row; few say different things."""
    learned = score.learned
    if learned is None:
        return [None] * len(score)
    memory, time = learned.memory, learned.time
    first, which = distinct_rows([memory.basis, time.runs, time.factor, time.deviation])
    said = [
        Taught(
            version=learned.version,
            memory_basis=memory.bases[memory.basis[row]] if memory.basis[row] >= 0 else None,
            time_runs=int(time.runs[row]),
            time_factor=float(time.factor[row]),
            time_deviation=float(time.deviation[row]),
        )
        for row in first
    ]
    return [said[index] for index in which.tolist()]


class _ScoreWriter:
    """The columns of one score as lists of plain numbers, so that writing a row costs no NumPy call."""

    def __init__(self, problem: Problem, score: Score) -> None:
        self.problem, self.score = problem, score
        memory, time, gpus = score.memory, score.time, problem.cluster.gpus
        fullest = memory.fullest
        self.memory = {
            "peak_allocated_gib": _plain(memory.peak_allocated_bytes[fullest] / GIB),
            "peak_reserved_gib": _plain(memory.peak_reserved_bytes[fullest] / GIB),
            "peak_gib": _plain(score.peak_bytes / GIB),
            "required_gib": _plain(score.required_bytes / GIB),
            "required_upper_gib": _plain(score.fit.required_upper_bytes / GIB),
            "analytical_gib": _plain(score.analytical_peak_bytes[fullest] / GIB),
            "oom_probability": _plain(score.fit.oom_probability),
            "activation_bytes_per_layer": _plain(memory.activation_bytes_per_layer),
            "device_load_peak_gib": _plain(memory.device_load_peak_bytes / GIB),
            "nvme_gib_per_node": _plain(memory.nvme_bytes_per_node / GIB),
        }
        self.fullest = fullest.tolist()
        self.moment = memory.peak_moment.tolist()
        self.host = _gib(memory.host_bytes_per_node, HOST_PARTS)
        correction = {"learned_correction": memory.peak_bytes - score.analytical_peak_bytes}
        self.stage_parts = _gib({**memory.parts, **correction}, (*MEMORY_PARTS, *correction))
        self.stage_numbers = memory.stages.stage.tolist()
        self.stage_layers = memory.stages.layers.sum(axis=1).tolist()
        self.stage_figures = {
            "peak_allocated_gib": _plain(memory.peak_allocated_bytes / GIB),
            "peak_reserved_gib": _plain(memory.peak_reserved_bytes / GIB),
            "peak_gib": _plain(memory.peak_bytes / GIB),
        }
        self.stage_ends = [*memory.stages.start[1:].tolist(), len(memory.stages)]
        self.stage_starts = memory.stages.start.tolist()
        self.step_seconds = _plain(time.step_seconds)
        seconds = [_plain(time.parts[name]) for name in TIME_PARTS]
        self.time_parts = [dict(zip(TIME_PARTS, values, strict=True)) for values in zip(*seconds, strict=True)]
        workload = problem.workload
        flops_per_s = time.model_flops / time.step_seconds / gpus
        self.throughput = {
            "tokens_per_second": _plain(workload.tokens / time.step_seconds),
            "tokens_per_second_per_gpu": _plain(workload.tokens / time.step_seconds / gpus),
            "samples_per_second": _plain(workload.global_batch_size / time.step_seconds),
            "model_tflops_per_gpu": _plain(flops_per_s / TERA),
            "mfu": _plain(flops_per_s / time.peak_flops_per_s),
            "hfu": _plain(time.hardware_flops / time.step_seconds / gpus / time.peak_flops_per_s),
        }
        self.cost = self._cost()
        self.placement = placement_warnings(problem, score.table).tolist()
        self.costs = CostWarnings(problem, score)
        self.costly = self.costs.mask.tolist()
        self.fits = score.fit.fits.tolist()
        self.taught = _taught(score)
        self.provenances: dict[tuple[int, int, int, Taught | None], dict[str, Any]] = {}

    def _cost(self) -> dict[str, list[float] | list[None]]:
        workload, cluster = self.problem.workload, self.problem.cluster
        none: list[None] = [None] * len(self.score)
        if workload.training_tokens is None:
            return {"days": none, "gpu_hours": none, "usd": none, "energy_kwh": none}
        seconds = self.score.step_seconds * (workload.training_tokens / workload.tokens)
        gpu_hours = seconds / SECONDS_PER_HOUR * cluster.gpus
        price = cluster.usd_per_gpu_hour
        return {
            "days": _plain(seconds / SECONDS_PER_DAY),
            "gpu_hours": _plain(gpu_hours),
            "usd": none if price is None else _plain(gpu_hours * price),
            "energy_kwh": _plain(seconds * cluster.gpus * cluster.gpu.tdp_watts / JOULES_PER_KWH),
        }

    def full(self, row: int) -> dict[str, Any]:
        fullest = self.fullest[row]
        return {
            "strategy": self.score.table.row(row),
            "valid": True,
            "fits": self.fits[row],
            "violations": [],
            "warnings": self._warnings(row),
            "memory": {name: values[row] for name, values in self.memory.items()}
            | {
                "capacity_gib": self.problem.cluster.capacity_bytes / GIB,
                "breakdown_gib": dict(self.stage_parts[fullest]),
                "stages": self._stages(row),
                "peak_moment": PEAK_MOMENTS[self.moment[fullest]],
                "host_gib_per_node": self.host[row],
            },
            "time": {"step_seconds": self.step_seconds[row], "breakdown_seconds": self.time_parts[row]},
            "throughput": {name: values[row] for name, values in self.throughput.items()},
            "cost": {name: values[row] for name, values in self.cost.items()},
            "provenance": self._provenance(row),
        }

    def _stages(self, row: int) -> list[dict[str, Any]]:
        return [
            {"stage": self.stage_numbers[index], "layers": self.stage_layers[index]}
            | {name: values[index] for name, values in self.stage_figures.items()}
            | {"breakdown_gib": self.stage_parts[index]}
            for index in range(self.stage_starts[row], self.stage_ends[row])
        ]

    def _warnings(self, row: int) -> list[dict[str, str]]:
        placed = explain_warnings(self.problem, self.score.table, row, self.placement[row])
        costly = [(code, self.costs.explain(row, code)) for code in decode(WARNINGS, self.costly[row])]
        return [{"code": code, "message": message} for code, message in [*placed, *costly]]

    def _provenance(self, row: int) -> dict[str, Any]:
        table = self.score.table
        taught = self.taught[row]
        key = (int(table.framework[row]), int(table.precision[row]), int(table.zero_stage[row]), taught)
        if key not in self.provenances:
            found = provenance(self.problem, *key)
            self.provenances[key] = {"time": found.time, "memory": found.memory, "notes": list(found.notes)}
        return self.provenances[key]
