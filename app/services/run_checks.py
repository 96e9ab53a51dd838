"""From what a client logs to checked runs: the schema, then model, cluster, workload and the figures together.

RunsNotLogged
├── RunsRefused      runs that break rules
└── RunKeyConflict   keys that belong to runs with other content

A strategy that breaks a rule of ours is no error: the run is a fact, and one that our rules call impossible is worth
more than most. It is kept; training skips what cannot be priced and says so in its report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from pydantic import ValidationError

from app.schemas.runs import RunRecord
from app.services.problems import resolve_problem
from cost_models.cluster import Cluster
from cost_models.errors import InvalidInput
from cost_models.units import GIB

MOST_ERRORS_OF_A_RUN: Final = 10
"""Every bad run is named; what is wrong with one need not be told without end."""
PEAKS: Final = ("peak_allocated_gib", "peak_reserved_gib", "peak_device_gib")
UNIT_SLACK: Final = 1.1
"""A peak may exceed the card's memory by this factor: sources print GB for GiB, which is 7.4 % (10^9 against 2^30
bytes). More is MB, or another card."""
ROUNDING_SLACK: Final = 1.01
"""Allocated may exceed reserved by this factor: both are printed with few digits."""

PROBLEM: Final = ("model", "cluster", "workload")
_canonical: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False
).encode
"""The same text for the same value, whatever the order of its fields. Made once: that costs as much as its use."""


class RunsNotLogged(Exception):
    """Nothing was logged. `errors`: one or more for every run at fault; their places begin with its index."""

    def __init__(self, errors: Sequence[InvalidInput]) -> None:
        first = errors[0]
        super().__init__(f"{first}{f' (and {len(errors) - 1} more)' if len(errors) > 1 else ''}")
        self.errors = tuple(errors)

    def without_index(self) -> Self:
        """The same of a run that was logged alone."""
        return type(self)([InvalidInput(error.loc[1:], error.code, error.message) for error in self.errors])


class RunsRefused(RunsNotLogged):
    """Runs that break rules."""


class RunKeyConflict(RunsNotLogged):
    """Keys that belong to runs with other content."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that can be logged."""

    key: str
    content_sha256: str
    """Of the record without its key."""
    record: dict[str, Any]
    """The RunRecord as JSON, with its key, without what was left out."""
    source: str | None
    framework: str
    gpu: str
    cluster: str
    family: str | None
    out_of_memory: bool
    started_at: datetime | None


def check_runs(records: Sequence[Any], *, most: int) -> list[CheckedRun]:
    """RunRecords as they came in (JSON values), checked to the end; raises RunsRefused, or InvalidInput where there are
    none, or more than `most`."""
    if not records:
        raise InvalidInput((), "too_short", "there are no runs in the list")
    if len(records) > most:
        raise InvalidInput((), "too_long", f"{len(records)} runs are too many: {most} at most in a call")
    checked: list[CheckedRun] = []
    errors: list[InvalidInput] = []
    clusters = _Clusters()
    for index, record in enumerate(records):
        try:
            checked.append(_check(record, clusters))
        except ValidationError as error:
            errors += _schema_errors(index, error)
        except InvalidInput as error:
            errors.append(InvalidInput((index, *error.loc), error.code, error.message))
    if errors:
        raise RunsRefused(errors)
    return checked


class _Clusters:
    """Clusters of runs whose model, cluster and workload were found to agree. Most runs of a call share them."""

    def __init__(self) -> None:
        self._known: dict[str, Cluster | InvalidInput] = {}

    def resolve(self, run: RunRecord, problem: str) -> Cluster:
        """The cluster of a run; `problem` is its model, cluster and workload as text. Raises InvalidInput."""
        if problem not in self._known:
            try:
                self._known[problem] = resolve_problem(run.model, run.cluster, run.workload).problem.cluster
            except InvalidInput as error:
                self._known[problem] = error
        found = self._known[problem]
        if isinstance(found, InvalidInput):
            raise found
        return found


def _check(record: Any, clusters: _Clusters) -> CheckedRun:
    run = RunRecord.model_validate(record)
    content = run.model_dump(mode="json", exclude_none=True, exclude={"key"})
    problem = _canonical({name: content[name] for name in PROBLEM})
    rest = _canonical({name: value for name, value in content.items() if name not in PROBLEM})
    cluster = clusters.resolve(run, problem)
    _check_figures(run, cluster)
    digest = hashlib.sha256(f"{problem}{rest}".encode()).hexdigest()
    key = digest if run.key is None else run.key
    return CheckedRun(
        key=key,
        content_sha256=digest,
        record={"key": key, **content},
        source=run.source,
        framework=run.strategy.framework,
        gpu=cluster.gpu.name,
        cluster=cluster.identity,
        family=run.family,
        out_of_memory=bool(run.measured.out_of_memory),
        started_at=run.started_at,
    )


def _check_figures(run: RunRecord, cluster: Cluster) -> None:
    measured, stages = run.measured, run.strategy.pipeline_parallel_size or 1
    if measured.pipeline_stage is not None and measured.pipeline_stage >= stages:
        raise InvalidInput(
            ("measured", "pipeline_stage"), "too_large", f"the strategy has {stages} stages, numbered from 0"
        )
    for name in PEAKS:
        peak_gib = getattr(measured, name)
        memory_gib = cluster.gpu.memory_bytes / GIB
        if peak_gib is not None and peak_gib > memory_gib * UNIT_SLACK:
            raise InvalidInput(
                ("measured", name), "too_large", f"the GPU has {memory_gib:g} GiB: is {peak_gib:g} in another unit?"
            )
    allocated, reserved = measured.peak_allocated_gib, measured.peak_reserved_gib
    if allocated is not None and reserved is not None and allocated > reserved * ROUNDING_SLACK:
        raise InvalidInput(
            ("measured", "peak_allocated_gib"),
            "too_large",
            f"what is allocated is reserved, and that is {reserved:g} GiB",
        )


def _schema_errors(index: int, error: ValidationError) -> list[InvalidInput]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [InvalidInput((index, *item["loc"]), item["type"], item["msg"]) for item in found[:MOST_ERRORS_OF_A_RUN]]
