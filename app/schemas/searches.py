"""SearchRequest, Search, and what a finished search answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.pagination import Cursor
from app.schemas import examples
from app.schemas.base import Degree, QueryModel, RequestModel, ResponseModel, Text
from app.schemas.clusters import ClusterInput
from app.schemas.estimates import Estimate, MemoryConfidence, ResolvedStrategy
from app.schemas.models import ModelInput
from app.schemas.search_trials import MeasuredSection
from app.schemas.strategies import Framework, Options, Strategy, StrategySpace
from app.schemas.workloads import Workload

Objective = Literal["step_time", "cost", "energy", "pareto"]
SearchStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
LabelName = Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_./-]+$")]


class Budget(RequestModel):
    """The search ends at the first of the two."""

    trials: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="Trials of the study that follows the sweep; left out: 128. In mode measured: runs; left out: 15.",
    )
    seconds: Annotated[float, Field(ge=1e-3, le=3600)] | None = Field(None, description="Seconds; left out: 10.")


class SearchRequest(RequestModel):
    """What to search plans for. Defaults that were used are listed in `assumptions` of the result."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [examples.SEARCH, examples.COST_SEARCH, examples.MEASURED_SEARCH]}
    )

    model: ModelInput = Field(description="What is trained.")
    cluster: ClusterInput = Field(description="On what; a plan uses all GPUs.")
    workload: Workload = Field(description="One optimizer step.")
    frameworks: Options[Framework] | None = Field(
        None, description="Left out: megatron-lm, deepspeed, fsdp2, and ddp where a replica fits one GPU."
    )
    space: StrategySpace | None = Field(None, description="Strategy fields narrowed to lists of values.")
    objective: Objective | None = Field(
        None, description="What ranks the plans; left out: step_time. `cost` needs the cluster's price."
    )
    memory_confidence: MemoryConfidence | None = Field(
        None, description="A plan fits if it does with this probability; left out: 0.9."
    )
    budget: Budget | None = Field(None, description="When to stop.")
    plans: Annotated[int, Field(ge=1, le=100)] | None = Field(None, description="Ranked plans wanted; left out: 10.")
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = Field(None, description="Left out: 0.")
    labels: Annotated[dict[LabelName, Text], Field(max_length=32)] | None = Field(
        None, description="Names and values to find the search by."
    )
    current: Strategy | None = Field(None, description="The strategy run today: scored, and compared with.")
    nodes_options: Options[Degree] | None = Field(None, description="Cluster sizes to search, in nodes.")
    deadline_days: Annotated[float, Field(ge=1e-3, le=1e5)] | None = Field(
        None, description="Bounds the days that `training_tokens` take."
    )
    mode: Literal["analytical", "measured"] | None = Field(
        None, description="Left out: analytical. measured: then ask `trials` for strategies to run, and tell."
    )
    learned: bool | None = Field(None, description="Whether learned corrections apply; left out: true.")


class Alternative(ResponseModel):
    """One step away from a plan, by an estimate. Where it breaks a rule, the figures are null."""

    change: str = Field(description="In words.")
    fields: dict[str, Any] = Field(description="What the step changes, with the new values; others may follow.")
    strategy: ResolvedStrategy
    valid: bool
    violations: list[str] = Field(description="Codes of the rules it breaks.")
    step_seconds: float | None
    relative: float | None = Field(description="Of the step time, over the plan's: 0.1 is 10 % slower.")
    required_upper_gib: float | None
    fits: bool | None
    meets_deadline: bool | None
    in_space: bool = Field(description="Whether `space` of the request allows it.")
    changes_numerics: bool = Field(description="It trains in other numbers than were asked for: of the first plan.")


class ChangedBest(ResponseModel):
    """The best of the strategies at hand under a change."""

    rank: int | None = Field(description="Of it among the plans; null: it is not one of them.")
    strategy: ResolvedStrategy
    step_seconds: float
    relative: float | None = Field(description="Of its step time, over the first plan's of today.")


class Sensitivity(ResponseModel):
    """What another cluster or load would change, asked of the plans and of what is one step away from them."""

    change: str = Field(description="In words.")
    name: str = Field(description="inter_node_bandwidth, intra_node_bandwidth, gpu_memory, nodes, expert_imbalance.")
    value: float = Field(description="A factor; of nodes and expert_imbalance the new value.")
    step_seconds: float | None = Field(description="Of the first plan; null: it does not fit then.")
    relative: float | None = Field(description="Of its step time, over that of today.")
    stays_first: bool
    best: ChangedBest | None = Field(description="Null: nothing at hand fits.")


class Collective(ResponseModel):
    """One level of the reduction of gradients, as it is priced."""

    collective: str = Field(description="all-reduce, reduce-scatter.")
    algorithm: str = Field(description="ring, tree.")
    protocol: str = Field(description="Of NCCL: Simple, LL128, LL.")
    ranks: int
    nodes: int = Field(description="That one group of the ranks spans.")
    message_bytes: float


class Plan(Estimate):
    """An Estimate that was ranked."""

    rank: int = Field(description="1 is the best.")
    nodes: int
    explanation: list[str] = Field(description="Why it wins, what binds it, what its nearest alternatives would cost.")
    alternatives: list[Alternative] = Field([], description="One step in each direction, fastest first.")
    sensitivity: list[Sensitivity] = Field([], description="Of the first plan; empty of others.")
    collectives: list[Collective] = Field(
        [], description="How gradients are reduced: one level is flat, two are hierarchical. Empty of adapters."
    )


class ClusterSize(ResponseModel):
    """One of the cluster sizes that were searched, with the figures of its best strategy."""

    nodes: int
    gpus: int
    fits: bool = Field(description="Whether any strategy does.")
    meets_deadline: bool | None = Field(description="Null: there is no deadline.")
    rank: int | None = Field(description="Of its best strategy in `plans`; null: it is not among them.")
    strategy: Strategy | None = Field(
        description="The best that fits; where none does, the one that misses by least; null: none is valid."
    )
    required_upper_gib: float | None
    capacity_gib: float
    step_seconds: float | None = Field(description="Null where nothing fits, as all that follows.")
    days: float | None = Field(description="For `training_tokens`, as all that follows; null without them.")
    gpu_hours: float | None
    usd: float | None = Field(description="Null without a price.")
    energy_kwh: float | None = Field(description="Of the GPUs at rated power.")
    notes: list[str] = Field(description="What stands in the way of this size.")


class SearchResult(ResponseModel):
    """What a search found."""

    plans: list[Plan] = Field(description="Ranked; all fit and differ pairwise.")
    tight: list[Plan] = Field(description="Would fit at confidence 0.5 only.")
    pareto: list[Plan] = Field(description="Step time against peak memory.")
    current: dict[str, Any] | None = Field(
        description="The strategy run today and what the first plan gains over it: `gain`, `saved_seconds`, `changes`."
    )
    space_size: int = Field(description="All combinations.")
    evaluated: int = Field(description="Strategies scored.")
    trials: int = Field(description="Trials of the study.")
    stopped_by: str
    elapsed_seconds: float = Field(description="From claim to stored result.")
    memory_model_version: int | None
    rejected: dict[str, int] = Field(description="How many strategies broke each rule, by code.")
    verdict: str | None = Field(description="Where nothing fits: by how much, and what would make it fit.")
    assumptions: list[str] = Field(description="Every default that was used.")
    sizes: list[ClusterSize] = Field([], description="Every cluster size of `nodes_options`, fewest nodes first.")
    smallest: int | None = Field(
        None, description="Nodes of the smallest size on which something fits and meets the deadline; null: none does."
    )
    fastest: int | None = Field(None, description="Of those, nodes of the size with the shortest step.")
    cheapest: int | None = Field(None, description="Of those, nodes of the size with the fewest GPU-hours (and USD).")
    measured: MeasuredSection | None = Field(None, description="Of a measured search: its trials; null otherwise.")


class Progress(ResponseModel):
    """How far a search is."""

    phase: str
    done: int
    total: int | None
    trials: int
    best_step_seconds: float | None


class Search(ResponseModel):
    """A search in the background."""

    id: str
    status: SearchStatus
    created_at: datetime
    finished_at: datetime | None
    labels: dict[str, str]
    progress: Progress | None
    error: dict[str, Any] | None = Field(description="Why it failed.")
    report: str | None = Field(description="Path of its report, a page for a browser; null until it has ended.")
    result: SearchResult | None = Field(description="Null until it has ended, and in lists.")


class SearchPage(ResponseModel):
    """One page of searches, newest first."""

    items: list[Search]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class SearchListQuery(QueryModel):
    """Which searches to list."""

    limit: int = Field(20, ge=1, le=100, description="Items of a page.")
    cursor: Cursor | None = Field(None, description="`next_cursor` of the page before.")
    status: SearchStatus | None = Field(None, description="Only searches that stand there.")
    label: Annotated[str, Field(max_length=400, pattern=r"^[A-Za-z0-9_./-]{1,64}(=[^\x00]*)?$")] | None = Field(
        None, description="Only searches with this label: `name=value`, or `name` whatever its value."
    )
