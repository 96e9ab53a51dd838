"""Measured runs (RunRecord lines of the contract) as problems and strategy tables that the cost models take."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.stages import StageRows, all_stages
from cost_models.strategy import FloatColumn, StrategyTable, partial_columns
from cost_models.workload import FineTuning, Workload

STEP_TIME: Final = ("step_seconds",)
MEMORY: Final = ("peak_allocated_gib", "peak_reserved_gib", "peak_device_gib")


@dataclass(frozen=True)
class RunGroup:
    """Runs of one model, cluster and workload that break no rule; identical requests collapsed to their median."""

    family: str
    source: str
    problem: Problem
    table: StrategyTable
    stages: StageRows
    step_seconds: FloatColumn
    """NaN where a run has none."""
    records: tuple[Mapping[str, Any], ...]
    refused: int


def load_groups(path: Path, figures: tuple[str, ...] = STEP_TIME) -> list[RunGroup]:
    """All runs with one of these measured figures, grouped."""
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if any(run["measured"].get(figure) for figure in figures):
            groups[_key(run, "model", "cluster", "workload", "family")].append(run)
    return [group for rows in groups.values() if (group := _group(rows)) is not None]


def _key(run: Mapping[str, Any], *names: str) -> str:
    return json.dumps([run.get(name) for name in names], sort_keys=True)


def _group(rows: list[dict[str, Any]]) -> RunGroup | None:
    same: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        same[_key(row, "strategy")].append(row)
    records = [twins[0] for twins in same.values()]
    seconds = np.array(
        [np.median([twin["measured"].get("step_seconds", np.nan) for twin in twins]) for twins in same.values()]
    )
    first = records[0]
    workload = _workload(first["workload"])
    problem = Problem(_model(first["model"], workload), resolve_cluster(first["cluster"]), workload)
    table = resolve_strategies(problem, partial_columns(_strategies(records, workload))).table
    valid = violations(problem, table) == 0
    if not valid.any():
        return None
    kept = table.take(valid)
    return RunGroup(
        family=first.get("family", first["source"]),
        source=first["source"],
        problem=problem,
        table=kept,
        stages=all_stages(problem.model, kept),
        step_seconds=seconds[valid],
        records=tuple(record for record, ok in zip(records, valid, strict=True) if ok),
        refused=int((~valid).sum()),
    )


def _strategies(records: Iterable[Mapping[str, Any]], workload: Workload) -> list[dict[str, Any]]:
    return [{"precision": workload.precision} | record["strategy"] for record in records]


def _model(given: Mapping[str, Any], workload: Workload) -> ModelArchitecture:
    if "preset" in given:
        return load_model(given["preset"])
    if "hf_config" in given:
        return read_hf_config(given["hf_config"])
    return build_architecture(given["architecture"], sequence_length=workload.sequence_length)


def _workload(given: Mapping[str, Any]) -> Workload:
    fine_tuning = given.get("fine_tuning")
    fields = dict(given)
    if fine_tuning:
        saved = tuple(fine_tuning.get("modules_to_save", ()))
        fields["fine_tuning"] = FineTuning(**(dict(fine_tuning) | {"modules_to_save": saved}))
    return Workload(**fields)
