"""Measured runs (RunRecord lines of the contract) as problems and strategy tables that the cost models take."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.run_records import record_problem, record_strategy
from cost_models.stages import StageRows, all_stages
from cost_models.strategy import FloatColumn, StrategyTable, partial_columns

STEP_TIME: Final = ("step_seconds",)
PROBLEM: Final = ("model", "cluster", "workload")
"""Runs that share these differ in strategy only."""


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


def load_groups(path: Path, figures: Collection[str] = STEP_TIME) -> list[RunGroup]:
    """All runs with one of these measured figures, grouped."""
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if any(run["measured"].get(figure) for figure in figures):
            groups[request_text(run, *PROBLEM, "family")].append(run)
    return [group for rows in groups.values() if (group := _group(rows)) is not None]


def request_text(run: Mapping[str, Any], *names: str) -> str:
    """Parts of a run as text: equal where they ask for the same."""
    return json.dumps([run.get(name) for name in names], sort_keys=True)


def _group(rows: list[dict[str, Any]]) -> RunGroup | None:
    same: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        same[request_text(row, "strategy")].append(row)
    records = [twins[0] for twins in same.values()]
    seconds = np.array(
        [np.median([twin["measured"].get("step_seconds", np.nan) for twin in twins]) for twins in same.values()]
    )
    first = records[0]
    problem = record_problem(first)
    table = resolve_strategies(problem, partial_columns([record_strategy(record) for record in records])).table
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
    )
