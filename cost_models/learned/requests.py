"""Distinct requests of RunRecords: runs that share model, cluster, workload, strategy, stage and source."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import numpy as np

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


@dataclass
class Request:
    """Records that ask for the same."""

    number: int
    first: Mapping[str, Any]
    measured: list[Mapping[str, Any]]
    at_seconds: float
    """When the last of them ran, since 1970; NaN where unknown."""

    @property
    def stage(self) -> int | None:
        """Whose memory was read; None: of the fullest."""
        stage: int | None = self.first["measured"].get("pipeline_stage")
        return stage

    @property
    def ran_out(self) -> bool:
        """Of memory."""
        return bool(self.first["measured"].get("out_of_memory"))

    @property
    def undecided(self) -> list[str]:
        """Decisive fields that nobody knows."""
        return _undecided(self.first)

    def median(self, figure: str) -> float:
        """Of what was measured; NaN where it was not."""
        values = [measured[figure] for measured in self.measured if measured.get(figure)]
        return median(values) if values else np.nan


class Requests:
    """Distinct requests of records, numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self._by_text: dict[tuple[Any, ...], Request] = {}
        self._problems: dict[str, list[Request]] = defaultdict(list)

    def number(self, record: Mapping[str, Any]) -> int:
        """The number of a record's request."""
        measured = record["measured"]
        problem = json.dumps([record["model"], record["cluster"], record["workload"]], sort_keys=True)
        strategy = json.dumps(record["strategy"], sort_keys=True)
        end = (measured.get("pipeline_stage"), bool(measured.get("out_of_memory")))
        origin = (record.get("family"), record.get("source"), bool(record.get("logged_at")))
        text = (problem, strategy, end, *origin, *_undecided(record))
        at = _seconds(record)
        request = self._by_text.get(text)
        if request is None:
            request = self._by_text[text] = Request(len(self._by_text), record, [], at)
            self._problems[problem].append(request)
        request.measured.append(measured)
        request.at_seconds = float(np.fmax(request.at_seconds, at))
        return request.number

    def by_problem(self) -> list[list[Request]]:
        """Requests that share model, cluster and workload together."""
        return list(self._problems.values())


def latest(problems: Sequence[Sequence[Request]], most: int) -> list[bool]:
    """Whether each problem is among the `most` with the latest runs, clusters in turn."""
    if len(problems) <= most:
        return [True] * len(problems)
    at = [max((-np.inf if np.isnan(r.at_seconds) else r.at_seconds) for r in requests) for requests in problems]
    turns: dict[str, int] = defaultdict(int)
    places: list[tuple[int, int, int]] = []
    for number in sorted(range(len(problems)), key=lambda number: -at[number]):
        cluster = json.dumps(problems[number][0].first["cluster"], sort_keys=True)
        places.append((turns[cluster], len(places), number))
        turns[cluster] += 1
    chosen = {number for _, _, number in sorted(places)[:most]}
    return [number in chosen for number in range(len(problems))]


def _undecided(record: Mapping[str, Any]) -> list[str]:
    return sorted(DECISIVE.intersection(record.get("unknown") or ())) if record.get("logged_at") else []


def _seconds(record: Mapping[str, Any]) -> float:
    given = record.get("started_at") or record.get("logged_at")
    if not given:
        return np.nan
    at = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
