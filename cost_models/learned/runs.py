"""RunRecords as what is learned from: measured over analytical, with the features of each, as arrays.

Runs of one request (model, cluster, workload, strategy, stage) are one row with the median of their figures: a request
that is repeated a thousand times teaches no more about others than one that is run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.codes import VIOLATIONS, decode
from cost_models.errors import CostModelError
from cost_models.learned.features import stage_features, stage_figures
from cost_models.learned.requests import Request, Requests, latest
from cost_models.learned.rows import MemoryRows, Origin, TimeRows
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.results import MemoryEstimate
from cost_models.rules import violations
from cost_models.run_records import PEAKS, record_problem, record_strategy
from cost_models.stages import StageRows, all_stages
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, partial_columns
from cost_models.time import estimate_time
from cost_models.units import GIB

MOST_PROBLEMS: Final = 2_000
"""Combinations of model, cluster and workload that are priced, one at a time in 3 to 12 ms; of more those with the
latest runs, clusters in turn, so that none is forgotten for another's sake."""
_OF_MEMORY: Final = {*PEAKS, "out_of_memory"}


@dataclass(frozen=True)
class Skipped:
    """A record that cannot be priced, or was not."""

    key: str
    reason: str


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
    requests = Requests()
    of_record = np.array([requests.number(record) for record in records], dtype=np.int64)
    pricing = _Pricing()
    problems = requests.by_problem()
    priced = latest(problems, MOST_PROBLEMS)
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

    def add(self, requests: list[Request]) -> None:
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
            stage = request.stage
            if undecided := request.undecided:
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

    def leave_out(self, requests: Sequence[Request], problems: int) -> None:
        self._skip(requests, f"older than the {MOST_PROBLEMS} models, clusters and workloads taken of {problems}")

    def runs(self, request: IntColumn, skipped: tuple[Skipped, ...]) -> TrainingRuns:
        return TrainingRuns(
            memory=MemoryRows.joined(self._memory),
            time=TimeRows.joined(self._time),
            clusters=self._clusters.all,
            families=self._families.all,
            shapes=self._shapes.all,
            request=request,
            skipped=skipped,
        )

    def _skip(self, requests: Sequence[Request], reason: str) -> None:
        self.reasons.update({request.number: reason for request in requests})

    def _origin(self, problem: Problem, table: StrategyTable, requests: Sequence[Request]) -> Origin:
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
        requests: Sequence[Request],
        origin: Origin,
    ) -> None:
        start = memory.stages.start
        read = np.array([-1 if request.stage is None else request.stage for request in requests])
        at = np.where(read >= 0, start + read, memory.fullest)
        ran_out = np.array([request.ran_out for request in requests])
        at[ran_out] = memory.stages.first_with_most(memory.required_bytes)[ran_out]
        features = stage_features(problem, table, memory, at)
        figures = stage_figures(memory, at)
        for statistic, name in enumerate(PEAKS):
            measured = np.array([request.median(name) for request in requests]) * GIB
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
        self, problem: Problem, table: StrategyTable, stages: StageRows, requests: Sequence[Request], origin: Origin
    ) -> None:
        measured = np.array([request.median("step_seconds") for request in requests])
        if not (timed := measured > 0).any():
            return
        predicted = estimate_time(problem, table, stages).step_seconds
        self._time.append(TimeRows(origin.take(timed), np.log(measured[timed] / predicted[timed])))
