"""Which cluster size to take: the smallest, the fastest and the cheapest that trains the model in time.

On one cluster size hours and GPU-hours, dollars and energy grow together, so the fastest strategy that fits is the best
one by every objective, and the size can train in time exactly if that strategy does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.strategy import IntColumn
from cost_models.units import GIB, SECONDS_PER_HOUR
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.rank import PLAN_FIELDS, rescore
from search.result import ClusterSize, SizeComparison, StoppedBy
from search.swept import Sweep

MOST_RULES_NAMED: Final = 3
SAME: Final = 1e-6
"""Seconds: figures that differ by less are one, as those of answers are rounded."""


@dataclass(frozen=True)
class SizeChoices:
    """The best strategy that fits of each cluster size, and which sizes to choose from: rows of `best`."""

    best: Candidates
    smallest: int | None = None
    fastest: int | None = None
    cheapest: int | None = None
    """By GPU-hours, and so by dollars and energy too: the sizes are of one cluster."""

    @property
    def rows(self) -> IntColumn:
        """All rows to choose from."""
        rows = {self.smallest, self.fastest, self.cheapest} - {None}
        return np.array(sorted(row for row in rows if row is not None), dtype=np.int64)


def choose_sizes(evaluator: Evaluator, swept: Sweep, tried: Sequence[Candidates]) -> SizeChoices:
    """Compare the sizes by the best that the sweep and the study found on each."""
    found = []
    for index, size in enumerate(swept.of_sizes):
        pool = join([size.best, size.late, *(part.take((part.cluster == index) & part.fits) for part in tried)])
        found.append(pool.take(pool.order()[:1]))
    best = join(found)
    usable = np.flatnonzero(best.acceptable)
    if not len(usable):
        return SizeChoices(best)
    gpus = np.array([evaluator.search.clusters[index].gpus for index in best.cluster.tolist()], dtype=np.int64)
    seconds = best.step_seconds
    # Of equals the smaller one.
    fastest, cheapest = (
        int(usable[np.lexsort((gpus[usable], figure[usable]))[0]]) for figure in (seconds, seconds * gpus)
    )
    return SizeChoices(best, int(usable[np.argmin(gpus[usable])]), fastest, cheapest)


def with_choices(evaluator: Evaluator, plans: Candidates, choices: SizeChoices, count: int) -> Candidates:
    """Plans in their order, among them the best one of each size to choose from, in the place of the last others."""
    wanted = choices.best.take(choices.rows)
    missing = [row for row in range(len(wanted)) if not _holds(plans, wanted, row)]
    if not missing:
        return plans
    pool = join([plans, rescore(evaluator, wanted.take(np.array(missing, dtype=np.int64)))])
    pool = pool.take(pool.order())
    pool = pool.take(pool.first_of_each(PLAN_FIELDS))
    firsts = pool.first_of_each(())
    needed = firsts[np.isin(pool.cluster[firsts], wanted.cluster)][:count]
    others = np.setdiff1d(np.arange(len(pool)), needed)[: max(count - len(needed), 0)]
    return pool.take(np.sort(np.concatenate([needed, others])))


def _holds(plans: Candidates, wanted: Candidates, row: int) -> bool:
    own = plans.step_seconds[plans.cluster == wanted.cluster[row]]
    return bool((own <= wanted.step_seconds[row] + SAME).any())


def compare_sizes(
    evaluator: Evaluator, swept: Sweep, choices: SizeChoices, plans: Sequence[Mapping[str, Any]]
) -> SizeComparison:
    """Every size that was asked for, with the figures of its best strategy."""
    search, best = evaluator.search, choices.best
    sizes = []
    for index, size in enumerate(swept.of_sizes):
        own = best.take(best.cluster == index)
        sizes.append(_trained(evaluator, own, plans, size) if len(own) else _out_of_reach(evaluator, index, size))
    smallest, fastest, cheapest = (
        None if row is None else search.clusters[int(best.cluster[row])].nodes
        for row in (choices.smallest, choices.fastest, choices.cheapest)
    )
    return SizeComparison(tuple(sorted(sizes, key=lambda size: size.nodes)), smallest, fastest, cheapest)


def _trained(evaluator: Evaluator, best: Candidates, plans: Sequence[Mapping[str, Any]], swept: Sweep) -> ClusterSize:
    """A size on which something fits; its best strategy may be among the plans."""
    search, index = evaluator.search, int(best.cluster[0])
    cluster = search.clusters[index]
    plan = next((plan for plan in plans if plan["nodes"] == cluster.nodes), None)
    if plan is not None and plan["time"]["step_seconds"] > best.step_seconds[0] + SAME:
        plan = None
    answer = plan or evaluator.answers(index, best.table)[0]
    memory, cost = answer["memory"], answer["cost"]
    in_time = bool(best.in_time[0])
    notes = [*_late_note(search, cost["days"])] if not in_time else []
    return ClusterSize(
        nodes=cluster.nodes,
        gpus=cluster.gpus,
        fits=True,
        meets_deadline=None if search.deadline_days is None else in_time,
        rank=None if plan is None else plan["rank"],
        strategy=answer["strategy"],
        required_upper_gib=memory["required_upper_gib"],
        capacity_gib=memory["capacity_gib"],
        step_seconds=answer["time"]["step_seconds"],
        days=cost["days"],
        gpu_hours=cost["gpu_hours"],
        usd=cost["usd"],
        energy_kwh=cost["energy_kwh"],
        notes=(*notes, *_batch_note(search, index), *_stopped_note(swept.stopped_by)),
    )


def _late_note(search: SearchProblem, days: float) -> list[str]:
    deadline = search.deadline_days or math.inf
    return [
        f"{days:.1f} days are {days - deadline:.1f} more than the deadline: it would have to be {days / deadline:.2f} "
        "times as fast."
    ]


def _out_of_reach(evaluator: Evaluator, index: int, swept: Sweep) -> ClusterSize:
    """A size on which nothing that was scored fits: the nearest miss, or why nothing is valid."""
    search, cluster = evaluator.search, evaluator.search.clusters[index]
    nearest = evaluator.evaluate(index, swept.nearest.table.take(slice(0, 1))) if len(swept.nearest) else None
    return ClusterSize(
        nodes=cluster.nodes,
        gpus=cluster.gpus,
        fits=False,
        meets_deadline=None if search.deadline_days is None else False,
        rank=None,
        strategy=None if nearest is None else nearest.table.row(0),
        required_upper_gib=None if nearest is None else round(float(nearest.needed_bytes[0]) / GIB, 6),
        capacity_gib=round(cluster.capacity_bytes / GIB, 6),
        step_seconds=None,
        days=None,
        gpu_hours=None,
        usd=None,
        energy_kwh=None,
        notes=(_miss(evaluator, swept, nearest), *_batch_note(search, index), *_stopped_note(swept.stopped_by)),
    )


def _miss(evaluator: Evaluator, swept: Sweep, nearest: Candidates | None) -> str:
    if nearest is not None:
        needed, capacity = float(nearest.needed_bytes[0]), evaluator.search.capacity_bytes
        if needed <= capacity:
            return "Nothing fits: the closest fits its GPUs, but not its host."
        return (
            f"Nothing fits: the closest needs up to {needed / GIB:.1f} of {capacity / GIB:.1f} GiB of a GPU, "
            f"{(needed - capacity) / GIB:.1f} GiB too much."
        )
    broken = ", ".join(f"{reason} ({count:,})" for reason, count in swept.rejected.most_common(MOST_RULES_NAMED))
    if broken:
        return f"No strategy is valid: rules broken most often: {broken}."
    return "No strategy was scored: no combination of sizes multiplies to all GPUs and divides the global batch."


def _batch_note(search: SearchProblem, index: int) -> list[str]:
    """Where part of the GPUs can never be data ranks, because the batch has not their factor."""
    batch, gpus = search.workload.global_batch_size, search.clusters[index].gpus
    rest = gpus
    while (common := math.gcd(rest, batch)) > 1:
        rest //= common
    if rest == 1:
        return []
    return [
        f"global_batch_size {batch} is not divisible by {rest}, a factor of the {gpus} GPUs (batch_not_divisible): no "
        "data-parallel size holds it, so that tensor, context or pipeline size must."
    ]


def _stopped_note(stopped_by: StoppedBy | None) -> list[str]:
    if stopped_by is None:
        return []
    return [f"The search was stopped ({stopped_by}) before all strategies of this size were scored."]


def sentences(search: SearchProblem, comparison: SizeComparison) -> list[str]:
    """Which size to take, for the verdict; nothing where one size was asked for."""
    if len(comparison.sizes) < 2:
        return []
    tokens, deadline = search.workload.training_tokens, search.deadline_days
    task = "fits" if tokens is None else f"trains {tokens:.4g} tokens"
    task += "" if deadline is None else f" in {deadline:g} days"
    if comparison.smallest is None or comparison.fastest is None or comparison.cheapest is None:
        sizes = "; ".join(f"{_nodes(size.nodes)}: {_outcome(size)}" for size in comparison.sizes)
        return [f"None of the cluster sizes {task}: {sizes}."]
    smallest, fastest, cheapest = (
        comparison.of(nodes) for nodes in (comparison.smallest, comparison.fastest, comparison.cheapest)
    )
    answer = (
        f"{_nodes(smallest.nodes).capitalize()} is the smallest size that {task} ({_duration(smallest)}), "
        f"{fastest.nodes} the fastest ({_duration(fastest)}), {cheapest.nodes} the cheapest ({_cost(cheapest)})."
    )
    others = [size for size in comparison.sizes if not size.usable]
    if not others:
        return [answer]
    return [answer, "Not " + "; ".join(f"{_nodes(size.nodes)}: {_outcome(size)}" for size in others) + "."]


def _outcome(size: ClusterSize) -> str:
    return _duration(size) if size.fits else "nothing fits"


def _duration(size: ClusterSize) -> str:
    return f"{size.step_seconds:.3g} s a step" if size.days is None else f"{size.days:.1f} days"


def _cost(size: ClusterSize) -> str:
    if size.usd is not None:
        return f"{size.usd:,.0f} USD"
    if size.gpu_hours is not None:
        return f"by GPU-hours, {size.gpu_hours:,.0f}, as the cluster has no price"
    return f"by GPU-hours, {size.gpu_seconds / SECONDS_PER_HOUR:.3g} a step"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
