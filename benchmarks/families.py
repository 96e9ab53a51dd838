"""Measured runs by family, parts of them, and how far off the time model is on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.errors import errors_of
from benchmarks.measured_runs import PROBLEM, RunGroup, request_text
from benchmarks.outcomes import Outcome
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import Coefficients

MOST_GROUPS = 30
"""Of one family while fitting: spread evenly, so that a dense sweep costs no more than a paper's table."""

Column: TypeAlias = npt.NDArray[np.float64]
Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Families:
    """Groups of runs by family."""

    groups: dict[str, list[RunGroup]]

    @classmethod
    def of(cls, groups: Sequence[RunGroup]) -> Families:
        by_family: dict[str, list[RunGroup]] = defaultdict(list)
        for group in groups:
            by_family[group.family].append(group)
        return cls(dict(by_family))

    def thinned(self) -> Families:
        def spread(groups: list[RunGroup]) -> list[RunGroup]:
            return [groups[i] for i in np.unique(np.linspace(0, len(groups) - 1, MOST_GROUPS).astype(int))]

        return Families({name: spread(groups) for name, groups in self.groups.items()})

    def where(self, wanted: Callable[[Record], bool]) -> Families:
        """The runs whose record is wanted."""
        return Families.of([part for group in self.all_groups if (part := _part(group, wanted)) is not None])

    @property
    def all_groups(self) -> list[RunGroup]:
        return [group for groups in self.groups.values() for group in groups]

    @property
    def shares(self) -> list[Column]:
        """Of each run in the mean over families, group by group."""
        weights = []
        for groups in self.groups.values():
            runs = sum(len(group.table) for group in groups)
            weights += [np.full(len(group.table), 1 / runs / len(self.groups)) for group in groups]
        return weights


def _part(group: RunGroup, wanted: Callable[[Record], bool]) -> RunGroup | None:
    kept = np.array([wanted(record) for record in group.records])
    if not kept.any():
        return None
    table = group.table.take(kept)
    return replace(
        group,
        table=table,
        stages=all_stages(group.problem.model, table),
        step_seconds=group.step_seconds[kept],
        records=tuple(record for record, keep in zip(group.records, kept, strict=True) if keep),
    )


def predicted_seconds(group: RunGroup, coefficients: Coefficients) -> Column:
    """Step time of each run of a group."""
    return estimate_time(group.problem, group.table, group.stages, coefficients).step_seconds


def report(title: str, families: Families, coefficients: Coefficients) -> None:
    """Print the errors by family, by the definitions of the acceptance scorer, and their means over families."""
    print(f"\n{title:34}{'runs':>6}{'median':>8}{'mean':>8}{'p90':>8}{'bias':>7}{'rho':>7}{'regret':>8}")
    medians, tails = [], []
    for name, groups in sorted(families.groups.items()):
        errors = errors_of([outcome for group in groups for outcome in _outcomes(group, coefficients)])
        print(
            f"{name:34}{errors.times:6}{errors.time_median:8.1%}{errors.time_mean:8.1%}{errors.time_p90:8.1%}"
            f"{errors.time_bias:7.2f}{errors.spearman:7.2f}{errors.regret:8.1%}"
        )
        medians.append(errors.time_median)
        tails.append(errors.time_p90)
    if len(medians) > 1:
        print(f"{'mean over families':40}{np.mean(medians):8.1%}{'':8}{np.mean(tails):8.1%}", flush=True)


def _outcomes(group: RunGroup, coefficients: Coefficients) -> list[Outcome]:
    rows = zip(group.records, group.step_seconds, predicted_seconds(group, coefficients), strict=True)
    return [
        Outcome(
            key=record["key"],
            source=group.source,
            family=group.family,
            gpu=group.problem.cluster.gpu.name,
            framework=record["strategy"]["framework"],
            problem=request_text(record, *PROBLEM),
            strategy=request_text(record, "strategy"),
            measured={"step_seconds": float(measured)},
            violations=(),
            fits=True,
            step_seconds=float(predicted),
            memory={},
        )
        for record, measured, predicted in rows
    ]
