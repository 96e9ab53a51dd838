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

from app.schemas.models import ModelInput
from app.schemas.runs import RunRecord
from app.services.models import read_model
from app.services.problems import resolve_problem
from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.errors import InvalidInput
from cost_models.run_records import PEAKS
from cost_models.units import GIB

MOST_ERRORS_OF_A_RUN: Final = 10
"""Every bad run is named; what is wrong with one need not be told without end."""
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
    problems = _Problems()
    for index, record in enumerate(records):
        try:
            checked.append(_check(record, problems))
        except ValidationError as error:
            errors += _schema_errors(index, error)
        except InvalidInput as error:
            errors.append(InvalidInput((index, *error.loc), error.code, error.message))
    if errors:
        raise RunsRefused(errors)
    return checked


@dataclass(frozen=True, slots=True)
class _Problem:
    """Model, cluster and workload that passed the schema."""

    parts: dict[str, Any]
    """As the schema has them."""
    content: dict[str, Any]
    """As JSON, without what was left out."""
    text: str
    """The content, canonical."""
    cluster: Cluster | InvalidInput
    """What the cluster resolves to, or why the three do not go together."""


class _Problems:
    """Problems of one call by what came in: most runs share theirs, and it is most of what there is to check."""

    def __init__(self) -> None:
        self._known: dict[str, _Problem] = {}
        self._models: dict[tuple[str, int | None], ModelArchitecture] = {}

    def validate(self, record: Any) -> tuple[RunRecord, _Problem]:
        """A record that passes the schema, and its problem; raises ValidationError."""
        came_in = _came_in(record)
        known = None if came_in is None else self._known.get(came_in)
        if known is not None:
            return RunRecord.model_validate(record | known.parts), known
        run = RunRecord.model_validate(record)
        content = run.model_dump(mode="json", exclude_none=True, include=set(PROBLEM))
        problem = _Problem(
            {name: getattr(run, name) for name in PROBLEM}, content, _canonical(content), self._cluster(run)
        )
        if came_in is not None:
            self._known[came_in] = problem
        return run, problem

    def _cluster(self, run: RunRecord) -> Cluster | InvalidInput:
        try:
            return resolve_problem(run.model, run.cluster, run.workload, read=self._read).problem.cluster
        except InvalidInput as error:
            return error

    def _read(self, given: ModelInput, sequence_length: int | None) -> ModelArchitecture:
        key = _canonical(given.model_dump(mode="json", exclude_none=True)), sequence_length
        if key not in self._models:
            self._models[key] = read_model(given, sequence_length)
        return self._models[key]


def _came_in(record: Any) -> str | None:
    """Model, cluster and workload of a record as text; None where they are not even JSON, which the schema refuses."""
    try:
        return _canonical([record[name] for name in PROBLEM])
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def _check(record: Any, problems: _Problems) -> CheckedRun:
    run, problem = problems.validate(record)
    if isinstance(problem.cluster, InvalidInput):
        raise problem.cluster
    _check_figures(run, problem.cluster)
    rest = run.model_dump(mode="json", exclude_none=True, exclude={"key", *PROBLEM})
    digest = hashlib.sha256(f"{problem.text}{_canonical(rest)}".encode()).hexdigest()
    key = digest if run.key is None else run.key
    return CheckedRun(
        key=key,
        content_sha256=digest,
        record={"key": key, **problem.content, **rest},
        source=run.source,
        framework=run.strategy.framework,
        gpu=problem.cluster.gpu.name,
        cluster=problem.cluster.identity,
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
