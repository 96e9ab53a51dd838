"""RunRecords as what is learned from: measured over analytical, with the features of each, as arrays.

Runs of one request (model, cluster, workload, strategy, stage) are one row with the median of their figures: a request
that is repeated a thousand times teaches no more about others than one that is run once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final, TypeVar

import numpy as np

from cost_models.codes import VIOLATIONS, decode
from cost_models.errors import CostModelError
from cost_models.learned.features import FEATURES, stage_features, stage_figures
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.results import MemoryEstimate
from cost_models.rules import violations
from cost_models.run_records import record_problem, record_strategy
from cost_models.stages import StageRows, all_stages
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, partial_columns
from cost_models.time import estimate_time
from cost_models.units import GIB

MEMORY_FIGURES: Final = ("peak_allocated_gib", "peak_reserved_gib", "peak_device_gib")
"""Of `measured`, in the order of STATISTICS."""
MOST_PROBLEMS: Final = 2_000
"""Combinations of model, cluster and workload that are priced, one at a time in 3 to 12 ms; of more those with the
latest runs, clusters in turn, so that none is forgotten for another's sake."""
DECISIVE: Final = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "context_parallel_size",
        "expert_parallel_size",
        "zero_stage",
        "micro_batch_size",
        "activation_checkpointing",
        "offload",
        "precision",
        "optimizer",
        "sequence_length",
    }
)
"""A logged run of which one of these is `unknown` is no evidence: its default is a guess that moves memory and time by
tens of percent, many times what is learned. In the table of published runs they were filled in by hand."""
_OF_MEMORY: Final = {*MEMORY_FIGURES, "out_of_memory"}
_Rows = TypeVar("_Rows", "MemoryRows", "TimeRows")


@dataclass(frozen=True)
class Skipped:
    """A record that cannot be priced, or was not."""

    key: str
    reason: str


@dataclass(frozen=True)
class Origin:
    """Where rows come from; columns of shape (m,), indices into the names of `TrainingRuns`."""

    request: IntColumn
    """Number of the distinct request."""
    framework: IntColumn
    cluster: IntColumn
    family: IntColumn
    """Sources that share machines or runs: never split between fit and score."""
    shape: IntColumn
    """Model."""
    logged: BoolColumn
    """Logged to this service, rather than published by others: only these are runs of one's own."""
    at_seconds: FloatColumn
    """When it ran, since 1970; NaN where unknown."""

    def __len__(self) -> int:
        return len(self.framework)

    def take(self, rows: BoolColumn | IntColumn) -> Origin:
        """The given rows."""
        return Origin(**{field.name: getattr(self, field.name)[rows] for field in fields(Origin)})


@dataclass(frozen=True)
class MemoryRows:
    """m measured peaks."""

    origin: Origin
    features: FloatColumn
    """(m, f) by FEATURES."""
    statistic: IntColumn
    """(m,) index into STATISTICS."""
    log_ratio: FloatColumn
    """(m,) log(measured / analytical)."""
    censored: BoolColumn
    """(m,) ran out of memory: `log_ratio` is a lower bound, of what allocated must have been to overflow the device."""

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, rows: BoolColumn | IntColumn) -> MemoryRows:
        """The given rows."""
        return _taken(self, rows)

    @staticmethod
    def joined(parts: Sequence[MemoryRows]) -> MemoryRows:
        """All rows of all parts, in order."""
        return _joined(parts, _no_memory_rows())


@dataclass(frozen=True)
class TimeRows:
    """t measured step times."""

    origin: Origin
    log_ratio: FloatColumn
    """(t,) log(measured / predicted)."""

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, rows: BoolColumn | IntColumn) -> TimeRows:
        """The given rows."""
        return _taken(self, rows)


@dataclass(frozen=True)
class TrainingRuns:
    """Runs, priced. `len()`: how many records are behind it, those that were skipped not counted."""

    memory: MemoryRows
    time: TimeRows
    clusters: tuple[str, ...]
    """`Cluster.identity` by index; likewise:"""
    families: tuple[str, ...]
    shapes: tuple[str, ...]
    request: IntColumn
    """(given,) request of each record in the order given; -1: skipped."""
    skipped: tuple[Skipped, ...]

    def __len__(self) -> int:
        return int((self.request >= 0).sum())

    def known_requests(self, known: BoolColumn) -> IntColumn:
        """Requests of the records that are known; `known` has the length and order of the records given."""
        if len(known) != len(self.request):
            raise ValueError(f"known has {len(known)} rows, the runs were made of {len(self.request)} records")
        requests: IntColumn = np.unique(self.request[known & (self.request >= 0)])
        return requests


def training_runs(records: Sequence[Mapping[str, Any]]) -> TrainingRuns:
    """RunRecords of the contract, each with `logged_at` (ISO time) if it was logged to this service, priced.

    What cannot be priced (a model that is refused, a strategy that breaks a rule) is in `skipped` with its reason.
    """
    requests = _Requests()
    of_record = np.array([requests.number(record) for record in records], dtype=np.int64)
    pricing = _Pricing()
    problems = requests.by_problem()
    priced = _latest(problems)
    for problem, wanted in zip(problems, priced, strict=True):
        if wanted:
            pricing.add(problem)
        else:
            pricing.leave_out(problem, len(problems))
    reasons = pricing.reasons
    request = np.array([number if number not in reasons else -1 for number in of_record.tolist()], dtype=np.int64)
    skipped = tuple(
        Skipped(str(record.get("key", "")), reasons[number])
        for record, number in zip(records, of_record.tolist(), strict=True)
        if number in reasons
    )
    return pricing.runs(request, skipped)


@dataclass
class _Request:
    """Records that ask for the same."""

    number: int
    first: Mapping[str, Any]
    measured: list[Mapping[str, Any]]
    at_seconds: float


class _Requests:
    """Distinct requests of records, grouped by what they share."""

    def __init__(self) -> None:
        self._by_text: dict[tuple[Any, ...], _Request] = {}
        self._problems: dict[str, list[_Request]] = defaultdict(list)

    def number(self, record: Mapping[str, Any]) -> int:
        measured = record["measured"]
        problem = json.dumps([record["model"], record["cluster"], record["workload"]], sort_keys=True)
        strategy = json.dumps(record["strategy"], sort_keys=True)
        end = (measured.get("pipeline_stage"), bool(measured.get("out_of_memory")))
        origin = (record.get("family"), record.get("source"), bool(record.get("logged_at")))
        text = (problem, strategy, end, *origin, *_undecided(record))
        at = _seconds(record)
        request = self._by_text.get(text)
        if request is None:
            request = self._by_text[text] = _Request(len(self._by_text), record, [], at)
            self._problems[problem].append(request)
        request.measured.append(measured)
        request.at_seconds = float(np.fmax(request.at_seconds, at))
        return request.number

    def by_problem(self) -> list[list[_Request]]:
        return list(self._problems.values())


def _undecided(record: Mapping[str, Any]) -> list[str]:
    return sorted(DECISIVE.intersection(record.get("unknown") or ())) if record.get("logged_at") else []


def _latest(problems: Sequence[Sequence[_Request]]) -> list[bool]:
    """Whether each problem is among the MOST_PROBLEMS."""
    if len(problems) <= MOST_PROBLEMS:
        return [True] * len(problems)
    at = [max((-np.inf if np.isnan(r.at_seconds) else r.at_seconds) for r in requests) for requests in problems]
    turns: dict[str, int] = defaultdict(int)
    places: list[tuple[int, int, int]] = []
    for number in sorted(range(len(problems)), key=lambda number: -at[number]):
        cluster = json.dumps(problems[number][0].first["cluster"], sort_keys=True)
        places.append((turns[cluster], len(places), number))
        turns[cluster] += 1
    chosen = {number for _, _, number in sorted(places)[:MOST_PROBLEMS]}
    return [number in chosen for number in range(len(problems))]


def _seconds(record: Mapping[str, Any]) -> float:
    given = record.get("started_at") or record.get("logged_at")
    if not given:
        return np.nan
    at = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


class _Names:
    """Texts numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class _Pricing:
    """Columns of rows, problem by problem."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        """Why a request has no figures."""
        self._clusters, self._families, self._shapes = _Names(), _Names(), _Names()
        self._memory: list[MemoryRows] = []
        self._time: list[TimeRows] = []

    def add(self, requests: list[_Request]) -> None:
        try:
            problem = record_problem(requests[0].first)
            table = resolve_strategies(
                problem, partial_columns([record_strategy(request.first) for request in requests])
            ).table
        except CostModelError as refused:
            self._skip(requests, str(refused))
            return
        broken = violations(problem, table)
        for request, mask, size in zip(requests, broken.tolist(), table.pipeline_parallel_size.tolist(), strict=True):
            stage = _stage(request)
            if undecided := _undecided(request.first):
                self._skip([request], f"unknown, and decisive: {', '.join(undecided)}")
            elif mask:
                self._skip([request], "the strategy is invalid: " + ", ".join(decode(VIOLATIONS, mask)))
            elif stage is not None and stage >= size:
                self._skip([request], f"pipeline_stage {stage} of {size} stages")
        kept = np.array([request.number not in self.reasons for request in requests])
        if not kept.any():
            return
        requests, table = [request for request, keep in zip(requests, kept, strict=True) if keep], table.take(kept)
        stages = all_stages(problem.model, table)
        origin = self._origin(problem, table, requests)
        if any(measured.keys() & _OF_MEMORY for request in requests for measured in request.measured):
            self._add_memory(problem, table, estimate_memory(problem, table, stages), requests, origin)
        self._add_time(problem, table, stages, requests, origin)

    def leave_out(self, requests: Sequence[_Request], problems: int) -> None:
        self._skip(requests, f"older than the {MOST_PROBLEMS} models, clusters and workloads taken of {problems}")

    def runs(self, request: IntColumn, skipped: tuple[Skipped, ...]) -> TrainingRuns:
        return TrainingRuns(
            memory=_joined(self._memory, _no_memory_rows()),
            time=_joined(self._time, TimeRows(_no_origin(), np.empty(0))),
            clusters=self._clusters.all,
            families=self._families.all,
            shapes=self._shapes.all,
            request=request,
            skipped=skipped,
        )

    def _skip(self, requests: Sequence[_Request], reason: str) -> None:
        self.reasons.update({request.number: reason for request in requests})

    def _origin(self, problem: Problem, table: StrategyTable, requests: Sequence[_Request]) -> Origin:
        identity, model = problem.cluster.identity, problem.model
        shape = f"{model.layers} layers, hidden {model.hidden_size}, vocabulary {model.vocab_size}"
        firsts = [request.first for request in requests]
        # Where a run names no family or source, those of one cluster are kept together.
        families = [first.get("family") or first.get("source") or f"cluster {identity}" for first in firsts]
        same = np.ones(len(requests), dtype=np.int64)
        return Origin(
            request=np.array([request.number for request in requests], dtype=np.int64),
            framework=table.framework,
            cluster=same * self._clusters.number(identity),
            family=np.array([self._families.number(family) for family in families], dtype=np.int64),
            shape=same * self._shapes.number(shape),
            logged=np.array([bool(first.get("logged_at")) for first in firsts]),
            at_seconds=np.array([request.at_seconds for request in requests]),
        )

    def _add_memory(
        self,
        problem: Problem,
        table: StrategyTable,
        memory: MemoryEstimate,
        requests: Sequence[_Request],
        origin: Origin,
    ) -> None:
        start = memory.stages.start
        read = np.array([-1 if (stage := _stage(request)) is None else stage for request in requests])
        at = np.where(read >= 0, start + read, memory.fullest)
        ran_out = np.array([bool(request.first["measured"].get("out_of_memory")) for request in requests])
        at[ran_out] = _neediest(memory)[ran_out]
        features = stage_features(problem, table, memory, at)
        figures = stage_figures(memory, at)
        for statistic, name in enumerate(MEMORY_FIGURES):
            measured = np.array([_median(request, name) for request in requests]) * GIB
            rows = ~ran_out & (measured > 0)
            ratio = np.log(measured[rows] / figures[rows, statistic])
            self._append(origin, features, rows, statistic, ratio, censored=False)
        capacity = problem.cluster.capacity_bytes
        room = capacity - (memory.required_bytes[at] - figures[:, 0])
        # A model that does not fit while it is set up says nothing of its steps.
        rows = ran_out & (memory.device_load_peak_bytes <= capacity) & (room > 0)
        self._append(origin, features, rows, 0, np.log(room[rows] / figures[rows, 0]), censored=True)

    def _append(
        self,
        origin: Origin,
        features: FloatColumn,
        rows: BoolColumn,
        statistic: int,
        log_ratio: FloatColumn,
        *,
        censored: bool,
    ) -> None:
        if count := int(rows.sum()):
            kind = np.full(count, statistic, dtype=np.int64)
            taken = MemoryRows(origin.take(rows), features[rows], kind, log_ratio, np.full(count, censored))
            self._memory.append(taken)

    def _add_time(
        self, problem: Problem, table: StrategyTable, stages: StageRows, requests: Sequence[_Request], origin: Origin
    ) -> None:
        measured = np.array([_median(request, "step_seconds") for request in requests])
        if not (timed := measured > 0).any():
            return
        predicted = estimate_time(problem, table, stages).step_seconds
        self._time.append(TimeRows(origin.take(timed), np.log(measured[timed] / predicted[timed])))


def _stage(request: _Request) -> int | None:
    stage: int | None = request.first["measured"].get("pipeline_stage")
    return stage


def _median(request: _Request, name: str) -> float:
    values = [measured[name] for measured in request.measured if measured.get(name)]
    return median(values) if values else np.nan


def _neediest(memory: MemoryEstimate) -> IntColumn:
    """(n,) the first stage row of each strategy that requires most."""
    stages = memory.stages
    at_most = np.flatnonzero(memory.required_bytes == memory.most_required_bytes[stages.row])
    first: IntColumn = at_most[np.searchsorted(stages.row[at_most], np.arange(len(stages.start)))]
    return first


def _no_origin() -> Origin:
    none = np.empty(0, dtype=np.int64)
    return Origin(none, none, none, none, none, np.empty(0, dtype=np.bool_), np.empty(0))


def _no_memory_rows() -> MemoryRows:
    none = np.empty(0, dtype=np.int64)
    return MemoryRows(_no_origin(), np.empty((0, len(FEATURES))), none, np.empty(0), np.empty(0, dtype=np.bool_))


def _joined(parts: Sequence[_Rows], nothing: _Rows) -> _Rows:
    if not parts:
        return nothing
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(nothing)
        if field.name != "origin"
    }
    origin = Origin(
        **{field.name: np.concatenate([getattr(part.origin, field.name) for part in parts]) for field in fields(Origin)}
    )
    return type(nothing)(origin=origin, **columns)


def _taken(rows_of: _Rows, rows: BoolColumn | IntColumn) -> _Rows:
    columns = {field.name: getattr(rows_of, field.name) for field in fields(rows_of)}
    return type(rows_of)(
        **{name: column.take(rows) if name == "origin" else column[rows] for name, column in columns.items()}
    )
