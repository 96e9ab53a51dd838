"""What the cost models say of measured runs: one outcome a run, runs of one request collapsed to their median."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.measured_runs import PROBLEM, request_text
from cost_models.answer import full_answers
from cost_models.errors import InvalidInput
from cost_models.estimate import estimate
from cost_models.resolve import resolve_strategies
from cost_models.run_records import record_problem, record_strategy
from cost_models.strategy import partial_columns

MEMORY: Final = {
    "peak_allocated_gib": "peak_allocated_gib",
    "peak_reserved_gib": "peak_reserved_gib",
    "peak_device_gib": "peak_gib",
}
"""What a RunRecord calls its figures, and what an answer calls the same."""
_MEDIANS: Final = ("step_seconds", *MEMORY)


@dataclass(frozen=True)
class Outcome:
    """One measured run and what was said of it."""

    key: str
    source: str
    family: str
    gpu: str
    framework: str
    problem: str
    """Model, cluster and workload: runs that share it differ in strategy only."""
    strategy: str
    measured: Mapping[str, Any]
    violations: tuple[str, ...]
    """Why the run is called invalid; empty where it has figures."""
    fits: bool
    step_seconds: float | None
    memory: Mapping[str, float]
    """By the names of `measured`, of the stage that was measured."""

    @property
    def valid(self) -> bool:
        """Whether the run has figures."""
        return not self.violations

    @property
    def ran_out(self) -> bool:
        """Whether it was measured to run out of memory."""
        return bool(self.measured.get("out_of_memory"))


def outcomes(records: Iterable[Mapping[str, Any]], *, memory_confidence: float) -> list[Outcome]:
    """Of every distinct request, in order."""
    problems: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in _collapsed(records):
        problems[request_text(record, *PROBLEM)].append(record)
    return [outcome for name, together in problems.items() for outcome in _outcomes(name, together, memory_confidence)]


def _collapsed(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs of the same request, pipeline stage and end as one, with the medians of their figures."""
    same: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        measured = record["measured"]
        end = [measured.get("pipeline_stage"), bool(measured.get("out_of_memory"))]
        same[request_text(record, *PROBLEM, "strategy") + json.dumps(end)].append(record)
    return [_median(twins) for twins in same.values()]


def _median(twins: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    measured = dict(twins[0]["measured"])
    for name in _MEDIANS:
        if values := [twin["measured"][name] for twin in twins if twin["measured"].get(name)]:
            measured[name] = median(values)
    return {**twins[0], "measured": measured}


def _outcomes(name: str, records: Sequence[Mapping[str, Any]], memory_confidence: float) -> list[Outcome]:
    """Of runs that share model, cluster and workload."""
    try:
        problem = record_problem(records[0])
    except InvalidInput as refused:
        refusal = {"valid": False, "violations": [{"code": f"request_refused: {refused}"}]}
        return [_outcome(name, record, refusal) for record in records]
    strategies = partial_columns([record_strategy(record) for record in records])
    table = resolve_strategies(problem, strategies).table
    answers = full_answers(estimate(problem, table, memory_confidence=memory_confidence))
    return [_outcome(name, record, answer) for record, answer in zip(records, answers, strict=True)]


def _outcome(name: str, record: Mapping[str, Any], answer: Mapping[str, Any]) -> Outcome:
    gpu, measured = record["cluster"]["gpu"], record["measured"]
    stage = measured.get("pipeline_stage")
    memory = answer["memory"] if answer["valid"] else None
    if memory and stage is not None:
        memory = next(at for at in memory["stages"] if at["stage"] == stage)
    return Outcome(
        key=record["key"],
        source=record["source"],
        family=record.get("family", record["source"]),
        gpu=gpu if isinstance(gpu, str) else gpu["name"],
        framework=record["strategy"]["framework"],
        problem=name,
        strategy=request_text(record, "strategy"),
        measured=measured,
        violations=tuple(violation["code"] for violation in answer["violations"]),
        fits=bool(answer["valid"] and answer["fits"]),
        step_seconds=answer["time"]["step_seconds"] if answer["valid"] else None,
        memory={figure: memory[answered] for figure, answered in MEMORY.items()} if memory else {},
    )
