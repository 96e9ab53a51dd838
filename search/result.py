"""What a search tells while it runs and when it ends: plain values that go to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

Phase = Literal["lattice", "study", "ranking"]
StoppedBy = Literal["trials", "seconds", "cancelled"]


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    phase: Phase
    done: int
    """Of `total`: layouts of the lattice, trials of the study, plans asked of the ranking."""
    total: int
    trials: int
    best_step_seconds: float | None
    """Of the plans that fit so far."""


@dataclass(frozen=True)
class Trial:
    """One trial of the study: enough to rebuild the study from, and to be read."""

    number: int
    parameters: Mapping[str, Any]
    """As the study names them (`study_space.StudySpace`)."""
    nodes: int
    strategy: Mapping[str, Any]
    """Resolved, in the words of the contract."""
    valid: bool
    fits: bool
    values: tuple[float, ...]
    """What the study minimises: the objective; for `pareto` step seconds and peak GiB."""
    constraints: Mapping[str, float]
    """Feasible where every one is <= 0."""
    step_seconds: float | None
    peak_bytes: float | None
    required_upper_bytes: float | None

    @property
    def feasible(self) -> bool:
        """Whether it keeps every constraint."""
        return all(value <= 0 for value in self.constraints.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able; not copied, as `dataclasses.asdict` does leaf by leaf."""
        return {name: getattr(self, name) for name in _TRIAL_FIELDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """The trial that `as_dict` wrote."""
        return cls(**{**values, "values": tuple(values["values"])})


_TRIAL_FIELDS: Final = tuple(one.name for one in fields(Trial))


@dataclass(frozen=True)
class ClusterSize:
    """One of the sizes that were asked for, and what it would take on it."""

    nodes: int
    gpus: int
    fits: bool
    """Whether any strategy does."""
    meets_deadline: bool | None
    """None: there is no deadline."""
    rank: int | None
    """Of its best strategy among the plans; None: it is none of them."""
    strategy: Mapping[str, Any] | None
    """The best that fits, else the one that misses by least; None: no strategy is valid."""
    required_upper_gib: float | None
    capacity_gib: float
    step_seconds: float | None
    """Of what fits, as all that follows."""
    days: float | None
    gpu_hours: float | None
    usd: float | None
    energy_kwh: float | None
    notes: tuple[str, ...]
    """What stands in its way, in sentences."""

    @property
    def usable(self) -> bool:
        """Whether it does what was asked for."""
        return self.fits and self.meets_deadline is not False

    @property
    def gpu_seconds(self) -> float:
        """Of one step."""
        return math.inf if self.step_seconds is None else self.step_seconds * self.gpus

    def as_dict(self) -> dict[str, Any]:
        """Plain values, JSON-able."""
        return {**asdict(self), "notes": list(self.notes)}


@dataclass(frozen=True)
class SizeComparison:
    """All sizes in order of their nodes, and those to choose from, in nodes; None where no size will do."""

    sizes: tuple[ClusterSize, ...] = ()
    smallest: int | None = None
    fastest: int | None = None
    cheapest: int | None = None
    """By GPU-hours, and so by dollars and energy too: the sizes are of one cluster."""

    def as_dict(self) -> dict[str, Any]:
        """Fields of a search's result, JSON-able."""
        return {
            "sizes": [size.as_dict() for size in self.sizes],
            "smallest": self.smallest,
            "fastest": self.fastest,
            "cheapest": self.cheapest,
        }

    def of(self, nodes: int) -> ClusterSize:
        """The size of so many nodes."""
        return next(size for size in self.sizes if size.nodes == nodes)


@dataclass(frozen=True)
class SearchResult:
    """The contract's "Search result"; plans are Estimates with `rank`, `nodes` and `explanation`."""

    plans: tuple[Mapping[str, Any], ...]
    tight: tuple[Mapping[str, Any], ...]
    """Would fit at confidence 0.5, not at the one asked for."""
    pareto: tuple[Mapping[str, Any], ...]
    current: Mapping[str, Any] | None
    space_size: int
    """All combinations of the axes, before any rule."""
    evaluated: int
    trials: int
    stopped_by: StoppedBy
    elapsed_seconds: float
    """By the clock of `run_search`; a service replaces it by claim to stored result."""
    memory_model_version: int | None
    rejected: Mapping[str, int]
    verdict: str
    assumptions: tuple[str, ...]
    sizes: SizeComparison = field(default_factory=SizeComparison)
    """What each cluster size would take."""
    measured: Mapping[str, Any] | None = None
    """Of a measured search: its candidates (`measured_pool.MeasuredPool`)."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the words of the contract, JSON-able."""
        return {
            "plans": list(self.plans),
            "tight": list(self.tight),
            "pareto": list(self.pareto),
            "current": self.current,
            "space_size": self.space_size,
            "evaluated": self.evaluated,
            "trials": self.trials,
            "stopped_by": self.stopped_by,
            "elapsed_seconds": self.elapsed_seconds,
            "memory_model_version": self.memory_model_version,
            "rejected": dict(self.rejected),
            "verdict": self.verdict,
            "assumptions": list(self.assumptions),
            **self.sizes.as_dict(),
            "measured": self.measured,
        }
