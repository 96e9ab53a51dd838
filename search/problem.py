"""What a search is asked: a model, one cluster or several sizes of it, a workload, and what may vary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.corrections import Corrections
from cost_models.errors import InvalidInput
from cost_models.problem import Problem
from cost_models.strategy import FRAMEWORKS
from cost_models.workload import Workload
from search.space import check_space

Objective = Literal["step_time", "cost", "energy", "pareto"]
OBJECTIVES: Final[tuple[str, ...]] = get_args(Objective)
DEFAULT_FRAMEWORKS: Final = ("megatron-lm", "deepspeed", "fsdp2")
"""And ddp where a replica fits one GPU (contract, SearchRequest)."""


@dataclass(frozen=True, kw_only=True)
class SearchProblem:
    """One search. Raises `InvalidInput` with the place of the field when it contradicts itself."""

    model: ModelArchitecture
    clusters: tuple[Cluster, ...]
    """The cluster sizes to choose from (`nodes_options`); usually one."""
    workload: Workload
    frameworks: tuple[str, ...] | None = None
    """None: the contract's default."""
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Strategy fields narrowed to lists of values, in the words of the contract."""
    objective: Objective = "step_time"
    memory_confidence: float = 0.9
    trials: int = 128
    seconds: float = 10.0
    plans: int = 10
    seed: int = 0
    current: Mapping[str, Any] | None = None
    """The strategy run today, as the contract writes it: scored, and a seed of the study."""
    deadline_days: float | None = None
    """How long the workload's `training_tokens` may take."""
    corrections: Corrections | None = None
    """What measured runs taught; None: the formulas alone."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_objective(self)
        _check_frameworks(self)
        check_space(self.space)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """One estimation problem for each cluster size."""
        return tuple(Problem(self.model, cluster, self.workload) for cluster in self.clusters)

    @property
    def capacity_bytes(self) -> float:
        """Of one GPU; cluster sizes differ in nodes only."""
        return self.clusters[0].capacity_bytes


def _check_numbers(search: SearchProblem) -> None:
    if not search.clusters:
        raise InvalidInput(("nodes_options",), "empty", "needs at least one cluster size")
    rules = (
        (("memory_confidence",), search.memory_confidence, 0.0 < search.memory_confidence < 1.0, "between 0 and 1"),
        (("budget", "trials"), search.trials, search.trials >= 0, "0 or more"),
        (("budget", "seconds"), search.seconds, search.seconds > 0, "above 0"),
        (("plans",), search.plans, search.plans >= 1, "1 or more"),
        (("seed",), search.seed, search.seed >= 0, "0 or more"),
        (("deadline_days",), search.deadline_days, search.deadline_days is None or search.deadline_days > 0, "above 0"),
    )
    for loc, value, holds, rule in rules:
        if not holds or (value is not None and not math.isfinite(value)):
            raise InvalidInput(loc, "out_of_range", f"must be {rule}, not {value}")


def _check_objective(search: SearchProblem) -> None:
    if search.objective not in OBJECTIVES:
        raise InvalidInput(("objective",), "unknown", f"must be one of {', '.join(OBJECTIVES)}")
    if search.objective == "cost" and any(cluster.usd_per_gpu_hour is None for cluster in search.clusters):
        raise InvalidInput(("objective",), "price_missing", "cost needs usd_per_gpu_hour of the cluster")
    if search.deadline_days is not None and search.workload.training_tokens is None:
        raise InvalidInput(("deadline_days",), "training_tokens_missing", "needs training_tokens of the workload")


def _check_frameworks(search: SearchProblem) -> None:
    if search.frameworks is None:
        return
    if not search.frameworks:
        raise InvalidInput(("frameworks",), "empty", "needs at least one framework")
    for index, name in enumerate(search.frameworks):
        if name not in FRAMEWORKS:
            raise InvalidInput(("frameworks", index), "unknown", f"{name} is not one of {', '.join(FRAMEWORKS)}")
    named = search.space.get("framework")
    if named and not set(named) & set(search.frameworks):
        raise InvalidInput(("space", "framework"), "empty", "names none of the frameworks that are searched")
