"""What another cluster, or another load of experts, would change of the first plan, and whether it stays first.

Asked of the plans, the best of each family and everything one step away from a plan: strategies that are at hand. Each
change is one small call of the cost models on all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cost_models.cluster import Cluster
from cost_models.strategy import BoolColumn, IntColumn, StrategyTable, concatenate
from cost_models.units import GB, GIB
from search.candidates import Candidates, join
from search.describe import describe
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.startable import searched

MORE_MEMORY: Final = 1.25
EXPERT_IMBALANCE: Final = 1.5
"""Hottest expert over the mean, where the request assumes a balanced router."""
REFINED_PLANS: Final = 3
RECOMPUTED_SHARES: Final = (0.75, 0.5, 0.25, 0.0)
"""Of the layers that these plans recompute, at least one: what more memory is first used for."""
UNFELT: Final = 5e-4
"""Of the step: less is not written out."""
SAME: Final = 1e-4
"""Relative: strategies this close are not told apart."""
DECIMALS: Final = 9


@dataclass(frozen=True)
class Change:
    """One thing that is different, and what follows from it."""

    words: str
    name: str
    value: float
    """A factor, or of `nodes` and `expert_imbalance` the new value."""
    first: float | None
    """Step seconds of the first plan; None: it is not possible then."""
    relative: float | None
    """Of them, over those of today."""
    gpus_factor: float
    best: Candidates
    """The best strategy at hand, one row; none where nothing fits."""
    rank: int | None
    """Of it among the plans; None: it is not one."""
    best_relative: float | None
    """Of its step time, over the first plan's of today."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the answer."""
        found = len(self.best) > 0
        return {
            "change": self.words,
            "name": self.name,
            "value": self.value,
            "step_seconds": _rounded(self.first),
            "relative": _rounded(self.relative),
            "stays_first": self.rank == 1,
            "best": {
                "rank": self.rank,
                "strategy": self.best.table.row(0),
                "step_seconds": _rounded(float(self.best.step_seconds[0])),
                "relative": _rounded(self.best_relative),
            }
            if found
            else None,
        }

    @property
    def unfelt(self) -> bool:
        """Neither the step of the first plan nor its place changes by anything worth a word."""
        return self.rank == 1 and self.relative is not None and abs(self.relative) < UNFELT

    @property
    def sentence(self) -> str:
        """In words."""
        head = f"With {self.words}: "
        if not len(self.best):
            return f"{head}nothing at hand fits."
        own = (
            "the first plan is no longer possible"
            if self.first is None
            else f"{self.first:.3g} s{_percent(self.relative)}"
        )
        hours = ""
        if self.gpus_factor != 1.0 and self.best_relative is not None:
            hours = f"; GPU-hours {((1 + self.best_relative) * self.gpus_factor - 1) * 100:+.1f} %"
        if self.rank == 1:
            return f"{head}{own}, and the order stands{hours}."
        other = describe(self.best.table.row(0)) if self.rank is None else f"plan {self.rank}"
        return (
            f"{head}{own}; {other} would be ahead, {float(self.best.step_seconds[0]):.3g} s"
            f"{_percent(self.best_relative)}{hours}."
        )


def in_words(changes: Sequence[Change]) -> list[str]:
    """A sentence for each change that is felt, and one for the others."""
    said = [change.sentence for change in changes if not change.unfelt]
    unfelt = [change.words for change in changes if change.unfelt]
    if not unfelt:
        return said
    *most, last = unfelt
    listed = f"{', '.join(most)} or {last}" if most else last
    return [*said, f"Neither the step nor the order changes with {listed}."]


def sensitivity(evaluator: Evaluator, plans: Candidates, others: Candidates) -> list[Change]:
    """Of the first plan, on the cluster size that it is for. `others`: strategies that break no rule."""
    search, index = evaluator.search, int(plans.cluster[0])
    cluster = search.clusters[index]
    ranks = np.concatenate([np.arange(1, len(plans) + 1), np.zeros(len(others), dtype=np.int64)])
    pool = join([plans, others])
    here = pool.cluster == index
    pool, ranks = replace(pool.take(here), cluster=np.zeros(int(here.sum()), dtype=np.int64)), ranks[here]
    # A cluster without a name is known by its links; what was learned on it stays.
    search = replace(search, clusters=(replace(cluster, name=cluster.identity),), current=None)
    asked = _Asked(search, pool, ranks)
    return [*asked.links(), *asked.memory(), *asked.nodes(), *asked.imbalance()]


@dataclass(frozen=True)
class _Asked:
    """The strategies at hand on one cluster, the first plan first."""

    search: SearchProblem
    pool: Candidates
    ranks: IntColumn
    """Of each among the plans; 0: it is none."""

    @property
    def cluster(self) -> Cluster:
        return self.search.clusters[0]

    def links(self) -> Iterator[Change]:
        cluster, fits = self.cluster, self.pool.take(self.pool.fits)
        ranks = self.ranks[self.pool.fits]
        domain = max(cluster.nvlink_domain_gpus, cluster.gpus_per_node)
        changes = []
        if cluster.gpus > domain:
            between = cluster.inter_node.bytes_per_s / cluster.inter_node.oversubscription
            changes += [
                ("twice", "inter_node_bandwidth", 2.0, _faster_fabric(cluster, 2.0), between),
                ("half", "inter_node_bandwidth", 0.5, _faster_fabric(cluster, 0.5), between),
            ]
        if cluster.gpus > 1 and domain > 1:
            changes += [
                ("twice", "intra_node_bandwidth", 2.0, _faster_link(cluster, 2.0), cluster.intra_node.bytes_per_s)
            ]
        for words, name, factor, changed, bytes_per_s in changes:
            link = "between nodes" if name == "inter_node_bandwidth" else "inside a node"
            speed = f"{words} the bandwidth {link} ({bytes_per_s * factor / GB:.3g} GB/s a GPU)"
            timed = Evaluator(replace(self.search, clusters=(changed,))).with_time(fits)
            yield self._change(speed, name, factor, timed, ranks)

    def memory(self) -> Iterator[Change]:
        capacity = self.cluster.capacity_bytes * MORE_MEMORY
        # What needs less than today's capacity and does not fit is short of something else.
        rows = ~self.pool.fits & (self.pool.needed_bytes > self.cluster.capacity_bytes)
        rows &= self.pool.needed_bytes <= capacity
        changed = replace(
            self.cluster,
            gpu=replace(self.cluster.gpu, memory_bytes=self.cluster.gpu.memory_bytes * MORE_MEMORY),
            gpu_free_memory_bytes=capacity if self.cluster.gpu_free_memory_bytes is not None else None,
        )
        table = concatenate([self.pool.table.take(np.flatnonzero(rows)), *self._less_recomputed()])
        ranks = np.concatenate([self.ranks[rows], np.zeros(len(table) - int(rows.sum()), dtype=np.int64)])
        more = Evaluator(replace(self.search, clusters=(changed,))).evaluate(0, table)
        fits = more.fits & searched(self.search, 0, more.table)
        yield self._change(
            f"{MORE_MEMORY - 1:.0%} more memory on each GPU ({capacity / GIB:.0f} GiB)",
            "gpu_memory",
            MORE_MEMORY,
            join([self.pool.take(self.pool.fits), more.take(fits)]),
            np.concatenate([self.ranks[self.pool.fits], ranks[fits]]),
        )

    def _less_recomputed(self) -> Iterator[StrategyTable]:
        """The first plans with fewer layers recomputed."""
        plans = self.pool.table.take(np.flatnonzero((self.ranks > 0) & (self.ranks <= REFINED_PLANS)))
        full = plans.take(np.flatnonzero(plans.is_choice("activation_checkpointing", "full")))
        for share in RECOMPUTED_SHARES if len(full) else ():
            yield replace(full, checkpointed_layers=np.maximum((full.checkpointed_layers * share).astype(np.int64), 1))

    def nodes(self) -> Iterator[Change]:
        nodes = self._next_size()
        if nodes is None:
            return
        changed = replace(self.cluster, nodes=nodes)
        possible = self._scales(np.array([nodes]))[0]
        table = self.pool.table.take(np.flatnonzero(possible))
        ranks_of_replica = table.tensor_parallel_size * table.context_parallel_size * table.pipeline_parallel_size
        table = replace(table, data_parallel_size=changed.gpus // ranks_of_replica)
        scored = Evaluator(replace(self.search, clusters=(changed,))).evaluate(0, table)
        fits = scored.fits
        more = nodes - self.cluster.nodes
        words = "one more node" if more == 1 else f"{more:,} more nodes"
        yield self._change(
            f"{words} ({changed.gpus:,} GPUs)", "nodes", float(nodes), scored.take(fits), self.ranks[possible][fits]
        )

    def imbalance(self) -> Iterator[Change]:
        workload = self.search.workload
        routed = any(block.experts is not None for block in self.search.model.blocks)
        if not routed or workload.expert_imbalance >= EXPERT_IMBALANCE:
            return
        search = replace(self.search, workload=replace(workload, expert_imbalance=EXPERT_IMBALANCE))
        fits = self.pool.fits
        scored = Evaluator(search).evaluate(0, self.pool.table.take(np.flatnonzero(fits)))
        yield self._change(
            f"{EXPERT_IMBALANCE:g} times the mean load on the hottest expert (assumed: {workload.expert_imbalance:g})",
            "expert_imbalance",
            EXPERT_IMBALANCE,
            scored.take(scored.fits),
            self.ranks[fits][scored.fits],
        )

    def _next_size(self) -> int | None:
        """The next number of nodes, up to twice as many, on which a plan (else what is at hand) keeps the batch."""
        sizes = np.arange(self.cluster.nodes + 1, 2 * self.cluster.nodes + 1)
        scales = self._scales(sizes)
        for rows in (self.ranks == 1, self.ranks > 0, self.ranks >= 0):
            possible = np.flatnonzero(scales[:, rows].any(axis=1))
            if len(possible):
                return int(sizes[possible[0]])
        return None

    def _scales(self, nodes: IntColumn) -> BoolColumn:
        """(sizes, n) whether another data-parallel size makes use of all GPUs and keeps the global batch."""
        table, gpus = self.pool.table, nodes[:, None] * self.cluster.gpus_per_node
        replica = table.tensor_parallel_size * table.context_parallel_size * table.pipeline_parallel_size
        samples = np.maximum(gpus // replica, 1) * table.micro_batch_size
        scales: BoolColumn = (gpus % replica == 0) & (self.search.workload.global_batch_size % samples == 0)
        return scales

    def _change(self, words: str, name: str, value: float, pool: Candidates, ranks: IntColumn) -> Change:
        today = float(self.pool.step_seconds[0])
        own = np.flatnonzero(ranks == 1)
        first = float(pool.step_seconds[own[0]]) if len(own) else None
        rows = np.flatnonzero(pool.in_time)
        gpus_factor = value / self.cluster.nodes if name == "nodes" else 1.0
        if not len(rows):
            return Change(words, name, value, first, _over(first, today), gpus_factor, pool.take(rows), None, None)
        least = float(pool.objective[rows].min())
        # Of equals the best plan.
        equals = rows[pool.objective[rows] <= least * (1 + SAME)]
        order = np.where(ranks[equals] > 0, ranks[equals], len(self.ranks) + 1)
        best = pool.take(equals[[int(np.argmin(order))]])
        rank = int(order.min()) if order.min() <= len(self.ranks) else None
        return Change(
            words=words,
            name=name,
            value=value,
            first=first,
            relative=_over(first, today),
            gpus_factor=gpus_factor,
            best=best,
            rank=rank,
            best_relative=_over(float(best.step_seconds[0]), today),
        )


def _faster_fabric(cluster: Cluster, factor: float) -> Cluster:
    link = cluster.inter_node
    measured = tuple(
        replace(entry, bus_bytes_per_s=entry.bus_bytes_per_s * (factor if entry.nodes > 1 else 1.0))
        for entry in link.measured
    )
    return replace(cluster, inter_node=replace(link, bytes_per_s=link.bytes_per_s * factor, measured=measured))


def _faster_link(cluster: Cluster, factor: float) -> Cluster:
    link = cluster.intra_node
    bridge = link.nvlink_bridge
    return replace(
        cluster,
        intra_node=replace(
            link,
            bytes_per_s=link.bytes_per_s * factor,
            nvlink_bridge=None if bridge is None else replace(bridge, bytes_per_s=bridge.bytes_per_s * factor),
        ),
    )


def _over(value: float | None, reference: float) -> float | None:
    return None if value is None else value / reference - 1


def _percent(relative: float | None) -> str:
    if relative is None:
        return ""
    return f" ({relative * 100:+.1f} %)" if abs(relative) >= UNFELT else " (as now)"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS)
