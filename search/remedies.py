"""What would make a search succeed that finds nothing: the smallest changes, each verified by an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cost_models.catalog.hardware import similar_gpu
from cost_models.cluster import Cluster, Host, usual_path_gpus
from cost_models.strategy import FRAMEWORKS as FRAMEWORK_NAMES
from cost_models.units import GIB
from cost_models.workload import FineTuning, Precision
from search.candidates import Candidates
from search.describe import describe
from search.evaluator import Evaluator
from search.problem import DEFAULT_FRAMEWORKS, SearchProblem
from search.rank import rank
from search.sweep import sweep
from search.watch import Watch

MOST_TIMES: Final = 64
"""More than 64 times the nodes, or 1/64 of the sequence, is no small change."""
SHORTEST_SEQUENCE: Final = 512
HOST_GIB: Final = (64, 128, 256, 512, 1024, 2048, 4096)
"""Memory that hosts are sold with."""
LEAN_SPACE: Final[Mapping[str, tuple[Any, ...]]] = {
    "micro_batch_size": (1,),
    "activation_checkpointing": ("full",),
}
"""Where memory is least, if anything fits, something here does."""
MOST_FIELDS: Final = 2
"""Of `space` that are named as being in the way."""
SAVING: Final = ("activation_checkpointing", "checkpointed_layers", "micro_batch_size", "zero_stage", "offload")
"""Fields that trade time for memory and leave the layout of the ranks alone."""
NARROWER_PRECISION: Final[Mapping[str, Precision]] = {"fp32": "bf16", "bf16": "fp8", "fp16": "fp8"}


@dataclass(frozen=True)
class Change:
    """A request that differs in one thing."""

    words: str
    search: SearchProblem


@dataclass(frozen=True)
class Remedy:
    """A change with which something fits, and the fastest strategy that then does, where memory is least."""

    change: Change
    plan: Candidates
    """One row."""

    @property
    def words(self) -> str:
        """The change, and the strategy that proves it."""
        plan = self.plan
        return (
            f"{self.change.words} ({describe(plan.table.row(0))}: {plan.step_seconds[0]:.3g} s a step, up to "
            f"{plan.required_upper_bytes[0] / GIB:.1f} GiB)"
        )


def remedies(search: SearchProblem, watch: Watch) -> list[Remedy]:
    """The smallest change of each kind that makes a strategy fit, as far as the time allows."""
    kinds = (
        (_other_frameworks, _in_order),
        (_larger_host, _last_first),
        (_eight_bit, _in_order),
        (_sixteen_bit_gradients, _in_order),
        (_fused_loss, _in_order),
        (_narrower, _in_order),
        (_shorter, _last_first),
        (_adapters, _in_order),
        (_more_nodes, _in_order),
    )
    found = (smallest(list(kind(search)), LEAN_SPACE, watch) for kind, smallest in kinds)
    return [*_wider(search, LEAN_SPACE, watch), *(remedy for remedy in found if remedy is not None)]


def hastenings(search: SearchProblem, times: float, watch: Watch) -> list[Remedy]:
    """The same where what fits is late: what makes it `times` faster."""
    ways = (_other_frameworks(search), _narrower(search), _more_nodes(search, times))
    found = (_in_order(list(changes), {}, watch) for changes in ways)
    return [*_wider(search, {}, watch), *(remedy for remedy in found if remedy is not None)]


def _wider(search: SearchProblem, lean: Mapping[str, tuple[Any, ...]], watch: Watch) -> list[Remedy]:
    """Fields of `space` of which each alone is in the way, a few; or else all of them together."""
    found: list[Remedy] = []
    for change in _less_narrow(search):
        if remedy := _in_order([change], lean, watch):
            found.append(remedy)
        if len(found) == MOST_FIELDS:
            return found
    together = _in_order(list(_not_narrow(search)), lean, watch) if not found else None
    return [together] if together else found


def _in_order(changes: Sequence[Change], lean: Mapping[str, tuple[Any, ...]], watch: Watch) -> Remedy | None:
    """The first that helps."""
    for change in changes:
        if watch.stopped_by() is not None:
            return None
        if remedy := _proof(change, lean, watch):
            return remedy
    return None


def _last_first(changes: Sequence[Change], lean: Mapping[str, tuple[Any, ...]], watch: Watch) -> Remedy | None:
    """The same of changes of which each helps more than the one before: where the last does not, none is tried."""
    last = _in_order(changes[-1:], lean, watch)
    return last and (_in_order(changes[:-1], lean, watch) or last)


def _less_narrow(search: SearchProblem) -> Iterator[Change]:
    """What costs least to change first."""
    for name in sorted(search.space, key=lambda name: SAVING.index(name) if name in SAVING else len(SAVING)):
        kept = {field: values for field, values in search.space.items() if field != name}
        yield Change(f"`space` not narrowing {name}", replace(search, space=kept))


def _not_narrow(search: SearchProblem) -> Iterator[Change]:
    if len(search.space) > 1:
        yield Change("`space` not narrowing anything", replace(search, space={}))


def _other_frameworks(search: SearchProblem) -> Iterator[Change]:
    others = [name for name in DEFAULT_FRAMEWORKS if name not in (search.frameworks or DEFAULT_FRAMEWORKS)]
    if others and "framework" not in search.space:
        yield Change(f"frameworks {', '.join(others)}", replace(search, frameworks=tuple(others)))


def _larger_host(search: SearchProblem) -> Iterator[Change]:
    cluster = search.clusters[0]
    host = cluster.host or _usual_host(cluster)
    if host is None:
        return
    verb = "more host memory" if cluster.host else "`host` described"
    for gib in HOST_GIB:
        if cluster.host is None or gib * GIB > cluster.host.memory_bytes:
            larger = replace(host, memory_bytes=gib * GIB)
            options = tuple(replace(option, host=larger) for option in search.clusters)
            yield Change(f"{verb}, {gib:,} GiB a node", replace(search, clusters=options))


def _usual_host(cluster: Cluster) -> Host | None:
    """As a description resolves that states the memory only (`cluster_input`); None: the GPU is unknown."""
    usual = similar_gpu(cluster.gpu.name)
    if usual is None:
        return None
    return Host(
        memory_bytes=0.0,
        memory_bytes_per_s=usual.host.memory_bytes_per_s,
        cpu_cores=usual.host.cpu_cores,
        pcie_bytes_per_s=usual.pcie_bytes_per_s,
        pcie_shared_by=usual_path_gpus(cluster.gpus_per_node, cluster.intra_node),
    )


def _eight_bit(search: SearchProblem) -> Iterator[Change]:
    if search.workload.optimizer in ("adamw", "adam") and search.workload.fine_tuning is None:
        yield Change("optimizer adamw-8bit", replace(search, workload=replace(search.workload, optimizer="adamw-8bit")))


def _sixteen_bit_gradients(search: SearchProblem) -> Iterator[Change]:
    if "gradient_dtype" not in search.space and search.workload.precision != "fp32":
        half = "fp16" if search.workload.precision == "fp16" else "bf16"
        space = {**search.space, "gradient_dtype": (half,)}
        yield Change(f"gradients accumulated in {half}", replace(search, space=space))


def _fused_loss(search: SearchProblem) -> Iterator[Change]:
    if not search.workload.fused_loss:
        yield Change("a fused loss", replace(search, workload=replace(search.workload, fused_loss=True)))


def _narrower(search: SearchProblem) -> Iterator[Change]:
    precision = NARROWER_PRECISION.get(search.workload.precision)
    if precision and "precision" not in search.space and search.clusters[0].gpu.supports(precision):
        yield Change(f"precision {precision}", replace(search, workload=replace(search.workload, precision=precision)))


def _shorter(search: SearchProblem) -> Iterator[Change]:
    length = search.workload.sequence_length
    while length // 2 >= SHORTEST_SEQUENCE and length * MOST_TIMES > search.workload.sequence_length:
        length //= 2
        if search.model.sequence_length is None:
            yield Change(
                f"sequences of {length:,}", replace(search, workload=replace(search.workload, sequence_length=length))
            )


def _adapters(search: SearchProblem) -> Iterator[Change]:
    tuning = search.workload.fine_tuning
    if tuning is None:
        lora = replace(search.workload, fine_tuning=FineTuning("lora"))
        yield Change("LoRA of rank 16 instead of training all weights", replace(search, workload=lora))
    if tuning is None or tuning.method == "lora":
        quantised = FineTuning("qlora") if tuning is None else replace(tuning, method="qlora")
        workload = replace(search.workload, fine_tuning=quantised)
        yield Change(f"QLoRA of rank {quantised.rank}, the frozen weights in NF4", replace(search, workload=workload))


def _more_nodes(search: SearchProblem, least_times: float = 1.0) -> Iterator[Change]:
    """Doublings and what is halfway between them, at least `least_times` as many."""
    largest = max(search.clusters, key=lambda cluster: cluster.nodes)
    halves = (
        doubling * part for doubling in range(1, MOST_TIMES + 1) for part in (2, 3) if doubling & (doubling - 1) == 0
    )
    for twice in sorted(halves):
        nodes, rest = divmod(largest.nodes * twice, 2)
        if rest == 0 and nodes > largest.nodes and nodes >= least_times * largest.nodes:
            yield Change(f"{nodes:,} nodes", replace(search, clusters=(replace(largest, nodes=nodes),)))


def _proof(change: Change, lean: Mapping[str, tuple[Any, ...]], watch: Watch) -> Remedy | None:
    """The best strategy of the changed search that fits, of its lean part; None: there is none."""
    search = replace(change.search, space={**lean, **change.search.space})
    named = search.space.get("framework", FRAMEWORK_NAMES)
    frameworks = [name for name in search.frameworks or DEFAULT_FRAMEWORKS if name in named]
    evaluator = Evaluator(search)
    swept = sweep(evaluator, frameworks, watch, lambda _: None)
    plans = rank(evaluator, swept.best, 1)
    return Remedy(change, plans) if len(plans) else None
