"""From requests to problems: defaults are filled in and listed.

Raises `cost_models.errors.InvalidInput` with the place of the field in the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.schemas.clusters import ClusterPreset, ClusterSpec
from app.schemas.models import ModelInput
from app.schemas.searches import SearchRequest
from app.schemas.strategies import Strategy
from app.schemas.workloads import FineTuning as FineTuningInput
from app.schemas.workloads import Workload as WorkloadInput
from app.services.models import read_model
from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.cluster_input import resolve_cluster
from cost_models.errors import InvalidInput
from cost_models.problem import Problem
from cost_models.workload import FineTuning, Workload, usual_attention, usual_precision
from search.problem import SearchProblem

MEMORY_CONFIDENCE: Final = 0.9
LORA_RANK: Final = 16

_SEARCH_DEFAULTS: Final[dict[str, Any]] = {
    "objective": "step_time",
    "memory_confidence": MEMORY_CONFIDENCE,
    "plans": 10,
    "seed": 0,
    "mode": "analytical",
}
_BUDGET_DEFAULTS: Final[dict[str, Any]] = {"trials": 128, "seconds": 10.0}
MEASURED_TRIALS: Final = 15
"""Runs of a measured search: from then on it found no more on simulated clusters (benchmarks/measured_trials.py)."""


@dataclass(frozen=True)
class ResolvedProblem:
    """A problem and every default that it rests on."""

    problem: Problem
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class ResolvedSearch:
    """A search and every default of the request that it rests on; a result lists these before its own."""

    problem: SearchProblem
    assumptions: tuple[str, ...]
    measured_trials: int | None = None
    """How many runs a measured search may ask for; None: it is analytical."""


def resolve_problem(
    model_input: ModelInput,
    cluster_input: ClusterPreset | ClusterSpec,
    workload_input: WorkloadInput,
    *,
    read: Callable[[ModelInput, int | None], ModelArchitecture] = read_model,
) -> ResolvedProblem:
    """Model, cluster and workload of one request. `read`: for callers that have read most of their models before."""
    model = read(model_input, workload_input.sequence_length)
    cluster = resolve_cluster(cluster_input.model_dump(exclude_none=True))
    workload, assumed = _resolve_workload(workload_input, cluster, model)
    if model.is_encoder_decoder:
        assumed.append(
            "encoder and decoder read sequence_length tokens each, a token of each counts once; flash attention takes "
            "the relative position biases, as cuDNN's kernels do"
        )
    return ResolvedProblem(Problem(model, cluster, workload), (*model.assumptions, *cluster.assumptions, *assumed))


def strategy_fields(strategy: Strategy) -> dict[str, Any]:
    """A strategy in the words of the contract, without what was left out."""
    return {name: value for name in strategy.model_fields_set if (value := getattr(strategy, name)) is not None}


def search_problem(request: SearchRequest) -> ResolvedSearch:
    """The search that a request asks for; everything that can be wrong with it is found here."""
    if request.mode == "measured" and request.objective == "pareto":
        raise InvalidInput(("objective",), "not_a_choice", "a measured search needs one objective, not a front")
    base = resolve_problem(request.model, request.cluster, request.workload)
    space = {} if request.space is None else _space(request)
    current = None if request.current is None else strategy_fields(request.current)
    options = {name: getattr(request, name) for name in _SEARCH_DEFAULTS}
    budget = {name: getattr(request.budget, name, None) for name in _BUDGET_DEFAULTS}
    measured_trials = None
    if request.mode == "measured":
        # The budget's trials are runs on the cluster; the analytical part that goes before has its usual ones.
        measured_trials, budget["trials"] = budget["trials"] or MEASURED_TRIALS, _BUDGET_DEFAULTS["trials"]
    assumed = [f"{name} left out: {default}" for name, default in _SEARCH_DEFAULTS.items() if options[name] is None] + [
        f"budget.{name} left out: {default:g}" for name, default in _BUDGET_DEFAULTS.items() if budget[name] is None
    ]
    if measured_trials is not None:
        left_out = getattr(request.budget, "trials", None) is None
        assumed.append(
            f"budget.trials {'left out: ' if left_out else ''}{measured_trials} runs on the cluster, after "
            f"{budget['trials']} analytical trials"
        )
    if request.frameworks is None:
        assumed.append("frameworks left out: megatron-lm, deepspeed, fsdp2, and ddp where a replica fits one GPU")
    filled = {name: _SEARCH_DEFAULTS[name] if value is None else value for name, value in options.items()}
    limits = {name: _BUDGET_DEFAULTS[name] if value is None else value for name, value in budget.items()}
    problem = SearchProblem(
        model=base.problem.model,
        clusters=_clusters(request, base.problem.cluster),
        workload=base.problem.workload,
        frameworks=None if request.frameworks is None else tuple(request.frameworks),
        space=space,
        objective=filled["objective"],
        memory_confidence=filled["memory_confidence"],
        trials=limits["trials"],
        seconds=float(limits["seconds"]),
        plans=filled["plans"],
        seed=filled["seed"],
        current=current,
        deadline_days=request.deadline_days,
    )
    return ResolvedSearch(problem, (*base.assumptions, *assumed), measured_trials)


def _space(request: SearchRequest) -> dict[str, tuple[Any, ...]]:
    assert request.space is not None
    return {
        name: tuple(tuple(value) if isinstance(value, list) else value for value in values)
        for name in sorted(request.space.model_fields_set)
        if (values := getattr(request.space, name)) is not None
    }


def _clusters(request: SearchRequest, cluster: Cluster) -> tuple[Cluster, ...]:
    if request.nodes_options is None:
        return (cluster,)
    described = request.cluster.model_dump(exclude_none=True)
    return tuple(resolve_cluster({**described, "nodes": nodes}) for nodes in request.nodes_options)


def _resolve_workload(given: WorkloadInput, cluster: Cluster, model: ModelArchitecture) -> tuple[Workload, list[str]]:
    assumed: list[str] = []

    def default(field: str, value: Any, why: str = "") -> Any:
        stated = getattr(given, field)
        if stated is not None:
            return stated
        shown = str(value).lower() if isinstance(value, bool) else value
        assumed.append(f"workload.{field} left out: {shown}{why}")
        return value

    precision, kernel = usual_precision(cluster.gpu), usual_attention(cluster.gpu)
    no_bf16 = "" if precision == "bf16" else f", because {cluster.gpu.name} has no bf16"
    no_flash = "" if kernel == "flash" else f", because {cluster.gpu.name} has no flash attention kernel"
    workload = Workload(
        sequence_length=_sequence_length(given, model, assumed),
        global_batch_size=given.global_batch_size,
        precision=default("precision", precision, no_bf16),
        optimizer=default("optimizer", "adamw"),
        attention=default("attention", kernel, no_flash),
        fused_loss=default("fused_loss", False),
        dropout=float(default("dropout", 0)),
        expert_imbalance=float(default("expert_imbalance", 1)),
        training_tokens=given.training_tokens,
        fine_tuning=None if given.fine_tuning is None else _fine_tuning(given.fine_tuning, assumed),
    )
    return workload, assumed


def _sequence_length(given: WorkloadInput, model: ModelArchitecture, assumed: list[str]) -> int:
    loc, only = ("workload", "sequence_length"), model.sequence_length
    if given.sequence_length is None:
        if only is None:
            raise InvalidInput(loc, "missing", "sequence_length is required")
        assumed.append(f"workload.sequence_length left out: {only}, the model's patches and its class token")
        return only
    if only is not None and given.sequence_length != only:
        raise InvalidInput(loc, "not_a_choice", f"the model reads sequences of {only} tokens only")
    positions = model.max_position_embeddings if model.position_embeddings == "learned" else None
    if positions is not None and given.sequence_length > positions:
        raise InvalidInput(
            loc, "too_large", f"the model has {positions} learned positions, not {given.sequence_length}"
        )
    return given.sequence_length


def _fine_tuning(given: FineTuningInput, assumed: list[str]) -> FineTuning:
    values: dict[str, Any] = {"rank": LORA_RANK, "target": "all-linear", "modules_to_save": ()}
    for field in values:
        stated = getattr(given, field)
        if stated is None:
            shown = values[field] if values[field] != () else "none"
            assumed.append(f"workload.fine_tuning.{field} left out: {shown}")
        else:
            values[field] = tuple(stated) if isinstance(stated, list) else stated
    return FineTuning(method=given.method, **values)
