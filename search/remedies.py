"""What would make a search succeed that finds nothing: the smallest changes, each verified by an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cost_models.cluster import Cluster
from cost_models.strategy import FRAMEWORKS as FRAMEWORK_NAMES
from cost_models.units import GIB
from cost_models.workload import FineTuning
from search.describe import describe
from search.evaluator import Evaluator
from search.problem import DEFAULT_FRAMEWORKS, SearchProblem
from search.rank import rank
from search.sweep import sweep
from search.watch import Watch

MOST_DOUBLINGS: Final = 6
"""More than 64 times the nodes, or 1/64 of the sequence, is no small change."""
SHORTEST_SEQUENCE: Final = 512
LEAN_SPACE: Final[Mapping[str, tuple[Any, ...]]] = {
    "micro_batch_size": (1,),
    "activation_checkpointing": ("full",),
}
"""Where memory is least, if anything fits, something here does."""
MOST_REMEDIES: Final = 5


@dataclass(frozen=True)
class _Change:
    words: str
    search: SearchProblem


def remedies(search: SearchProblem, watch: Watch) -> list[str]:
    """Changes that make a strategy fit (and meet the deadline), in words, with the strategy that then does; as many as
    the time allows."""
    found: list[str] = []
    kinds = (_less_narrow, _other_frameworks, _eight_bit, _shorter, _lora, _more_nodes)
    for ways in (kind(search) for kind in kinds):
        # Of one kind of change, the smallest that helps.
        for change in ways:
            if watch.stopped_by() is not None:
                return found
            if (proof := _proof(change.search, watch)) is not None:
                found.append(f"{change.words} ({proof})")
                break
        if len(found) == MOST_REMEDIES:
            break
    return found


def _less_narrow(search: SearchProblem) -> Iterator[_Change]:
    for name in search.space:
        kept = {field: values for field, values in search.space.items() if field != name}
        yield _Change(f"`space` not narrowing {name}", replace(search, space=kept))
    if len(search.space) > 1:
        yield _Change("`space` not narrowing anything", replace(search, space={}))


def _other_frameworks(search: SearchProblem) -> Iterator[_Change]:
    others = [name for name in DEFAULT_FRAMEWORKS if name not in (search.frameworks or DEFAULT_FRAMEWORKS)]
    if others and "framework" not in search.space:
        yield _Change(f"frameworks {', '.join(others)}", replace(search, frameworks=tuple(others)))


def _eight_bit(search: SearchProblem) -> Iterator[_Change]:
    if search.workload.optimizer in ("adamw", "adam") and search.workload.fine_tuning is None:
        yield _Change(
            "optimizer adamw-8bit", replace(search, workload=replace(search.workload, optimizer="adamw-8bit"))
        )


def _shorter(search: SearchProblem) -> Iterator[_Change]:
    length = search.workload.sequence_length
    for _ in range(MOST_DOUBLINGS):
        length //= 2
        if length < SHORTEST_SEQUENCE or search.model.sequence_length is not None:
            return
        yield _Change(
            f"sequences of {length}", replace(search, workload=replace(search.workload, sequence_length=length))
        )


def _lora(search: SearchProblem) -> Iterator[_Change]:
    if search.workload.fine_tuning is None:
        workload = replace(search.workload, fine_tuning=FineTuning("lora"))
        yield _Change("LoRA of rank 16 instead of training all weights", replace(search, workload=workload))


def _more_nodes(search: SearchProblem) -> Iterator[_Change]:
    largest = max(search.clusters, key=lambda cluster: cluster.nodes)
    for doublings in range(1, MOST_DOUBLINGS + 1):
        cluster = _grown(largest, 2**doublings)
        yield _Change(f"{cluster.nodes} nodes", replace(search, clusters=(cluster,)))


def _grown(cluster: Cluster, factor: int) -> Cluster:
    return replace(cluster, nodes=cluster.nodes * factor)


def _proof(search: SearchProblem, watch: Watch) -> str | None:
    """The best strategy of the changed search's lean part that fits, in words; None: there is none."""
    lean = replace(search, space={**LEAN_SPACE, **search.space})
    named = lean.space.get("framework", FRAMEWORK_NAMES)
    frameworks = [name for name in search.frameworks or DEFAULT_FRAMEWORKS if name in named]
    evaluator = Evaluator(lean)
    swept = sweep(evaluator, frameworks, watch, lambda _: None)
    plans = rank(evaluator, swept.best, 1)
    if not len(plans):
        return None
    return (
        f"{describe(plans.table.row(0))}: {plans.step_seconds[0]:.3g} s a step, up to "
        f"{plans.required_upper_bytes[0] / GIB:.1f} GiB"
    )
