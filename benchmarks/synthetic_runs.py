"""Made-up runs that look like those of a platform: published configurations, varied, on a few clusters of one owner.

Figures are the formulas' own, times what sets a cluster apart (drawn once for each) and the noise of one run. They show
how the service bears many runs, and nothing about how exact it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.estimate import estimate
from cost_models.published_runs import published_runs
from cost_models.resolve import resolve_strategies
from cost_models.run_records import record_problem, record_strategy
from cost_models.strategy import partial_columns
from cost_models.units import GIB

CLUSTERS: Final = 8
BATCH_FACTORS: Final = (1, 2, 4, 8)
MICRO_BATCH_FACTORS: Final = (1, 2)
CHECKPOINTING: Final = ("none", "full")
EVERY: Final = 23
"""One published run in so many is varied: prime to the numbers of rows of their tables, so that all sources appear."""
CLUSTER_SPREAD: Final = 0.08
RUN_NOISE: Final = 0.03
"""Standard deviations of the log of a figure."""


@dataclass(frozen=True)
class Template:
    """A configuration and the formulas' figures of it."""

    record: dict[str, Any]
    allocated_gib: float
    reserved_gib: float
    device_gib: float
    capacity_gib: float
    step_seconds: float


def synthetic_runs(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """RunRecords with keys of their own."""
    random = np.random.default_rng(seed)
    templates = _templates()
    memory_factors, time_factors = np.exp(random.normal(0.0, CLUSTER_SPREAD, (2, CLUSTERS)))
    for number in range(count):
        template, site = templates[random.integers(len(templates))], int(random.integers(CLUSTERS))
        memory_noise, time_noise = np.exp(random.normal(0.0, RUN_NOISE, 2))
        memory = float(memory_factors[site] * memory_noise)
        measured: dict[str, Any] = {"out_of_memory": True}
        if template.device_gib * memory < template.capacity_gib:
            measured = {
                "peak_allocated_gib": round(template.allocated_gib * memory, 3),
                "peak_reserved_gib": round(template.reserved_gib * memory, 3),
                "peak_device_gib": round(template.device_gib * memory, 3),
                "step_seconds": round(template.step_seconds * float(time_factors[site] * time_noise), 4),
            }
        named = template.record["cluster"] | {"name": f"site-{site}-{template.record['source']}"}
        yield template.record | {"key": f"synthetic/{seed}/{number}", "cluster": named, "measured": measured}


def _templates() -> list[Template]:
    templates = []
    for published in published_runs()[::EVERY]:
        for factor in BATCH_FACTORS:
            batch = published["workload"]["global_batch_size"] * factor
            record = {name: published[name] for name in ("model", "cluster", "strategy", "software", "family")} | {
                "workload": published["workload"] | {"global_batch_size": batch},
                "source": f"synthetic {published['source']}",
            }
            templates += _varied(record)
    return templates


def _varied(record: dict[str, Any]) -> list[Template]:
    problem = record_problem(record)
    micro_batch = record["strategy"].get("micro_batch_size", 1)
    strategies = [
        record["strategy"] | {"micro_batch_size": micro_batch * factor, "activation_checkpointing": checkpointing}
        for factor in MICRO_BATCH_FACTORS
        for checkpointing in CHECKPOINTING
    ]
    columns = partial_columns([record_strategy(record | {"strategy": strategy}) for strategy in strategies])
    estimates = estimate(problem, resolve_strategies(problem, columns).table, memory_confidence=0.9)
    templates = []
    for strategy, block, position in zip(strategies, estimates.block, estimates.position, strict=True):
        if block < 0:
            continue
        score = estimates.scores[block]
        fullest = score.memory.fullest[position]
        templates.append(
            Template(
                record=record | {"strategy": strategy},
                allocated_gib=float(score.memory.peak_allocated_bytes[fullest] / GIB),
                reserved_gib=float(score.memory.peak_reserved_bytes[fullest] / GIB),
                device_gib=float(score.memory.peak_bytes[fullest] / GIB),
                capacity_gib=problem.cluster.capacity_bytes / GIB,
                step_seconds=float(score.step_seconds[position]),
            )
        )
    return templates
