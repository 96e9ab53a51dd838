"""Scores the whole lattice in blocks and keeps what the rest needs: a shortlist, the front, near misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.codes import VIOLATIONS
from cost_models.frameworks import FRAMEWORKS
from cost_models.resolve import LARGEST_SIZE
from cost_models.strategy import IntColumn
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.lattice import Lattice, build_lattice
from search.pareto import front
from search.result import Progress, StoppedBy
from search.space import allows
from search.watch import Watch

SHORTLIST: Final = 4096
"""Candidates kept in order of the objective: more than any ranking walks through."""
NEAREST: Final = 256
"""Candidates kept in order of how little they miss by."""


@dataclass(frozen=True)
class Sweep:
    """The lattice, scored. Each part is ordered best first."""

    best: Candidates
    """Plans by objective."""
    families: Candidates
    """The best plan of each family: cluster, framework, tensor size, with or without a pipeline."""
    front: Candidates
    """Plans that no other beats in both step time and peak memory."""
    tight: Candidates
    """Would fit at even odds."""
    late: Candidates
    """Fit, but miss the deadline."""
    nearest: Candidates
    """Valid and too large, by what they need."""
    space_size: int
    evaluated: int
    rejected: Counter[str]
    stopped_by: StoppedBy | None
    """Why not all of the lattice was scored; None: it was."""

    @property
    def best_step_seconds(self) -> float | None:
        """Of the plans."""
        return float(self.best.step_seconds.min()) if len(self.best) else None


def sweep(evaluator: Evaluator, frameworks: Sequence[str], watch: Watch, report: Callable[[Progress], None]) -> Sweep:
    """Score every candidate of every framework on every cluster size, or as many as the budget allows."""
    lattices = [
        (index, build_lattice(evaluator.search, cluster, framework))
        for index, cluster in enumerate(evaluator.search.clusters)
        for framework in FRAMEWORKS
        if framework.name in frameworks
    ]
    keeper = _Keeper(evaluator)
    stopped_by = _fill(keeper, lattices, watch, report)
    return keeper.sweep(sum(lattice.axes.combinations for _, lattice in lattices), stopped_by)


def _fill(
    keeper: _Keeper, lattices: Sequence[tuple[int, Lattice]], watch: Watch, report: Callable[[Progress], None]
) -> StoppedBy | None:
    total = sum(len(lattice) for _, lattice in lattices)
    for index, lattice in lattices:
        for partial in lattice.blocks():
            if stopped_by := watch.stopped_by():
                return stopped_by
            table = keeper.evaluator.resolve(index, partial)
            table = table.take(allows(keeper.evaluator.search.space, table))
            keeper.add(keeper.evaluator.evaluate(index, table, only_bounding_stages=True))
            report(Progress("lattice", keeper.evaluated, total, 0, keeper.best_step_seconds()))
    return None


class _Keeper:
    """What is kept of the blocks seen so far."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.evaluated = 0
        self.rejected: Counter[str] = Counter()
        empty = evaluator.evaluate_strategies(0, [])
        self.best = self.families = self.front = self.tight = self.late = self.nearest = empty

    def add(self, block: Candidates) -> None:
        """Keep the best of a block."""
        self.evaluated += len(block)
        self.rejected.update(rejections(block, self.evaluator.search.capacity_bytes))
        block = block.take(block.valid)
        plans = block.take(block.acceptable)
        self.best = _first(join([self.best, plans]), SHORTLIST)
        self.families = _best_of_each_family(join([self.families, plans]))
        self.front = front_of(join([self.front, plans]))
        self.tight = _first(join([self.tight, block.take(block.tight)]), SHORTLIST)
        self.late = _first(join([self.late, block.take(block.fits & ~block.in_time)]), NEAREST)
        misses = join([self.nearest, block.take(~block.fits)])
        self.nearest = misses.take(np.argsort(misses.needed_bytes, kind="stable")[:NEAREST])

    def best_step_seconds(self) -> float | None:
        """Of the plans kept so far."""
        return float(self.best.step_seconds.min()) if len(self.best) else None

    def sweep(self, space_size: int, stopped_by: StoppedBy | None) -> Sweep:
        """All that was kept."""
        return Sweep(
            best=self.best,
            families=self.families.take(self.families.order()),
            front=self.front,
            tight=self.tight,
            late=self.late,
            nearest=self.nearest,
            space_size=space_size,
            evaluated=self.evaluated,
            rejected=self.rejected,
            stopped_by=stopped_by,
        )


def rejections(candidates: Candidates, capacity_bytes: float) -> Counter[str]:
    """How many candidates each rule, the memory, the host and the deadline ruled out; some for several reasons."""
    masks, counts = np.unique(candidates.violations, return_counts=True)
    reasons: Counter[str] = Counter()
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        for bit, violation in enumerate(VIOLATIONS):
            if mask >> bit & 1:
                reasons[violation] += count
    too_large = candidates.valid & ~candidates.fits
    device = too_large & (candidates.needed_bytes > capacity_bytes)
    for reason, rows in (
        ("out_of_memory", device),
        ("host_memory_short", too_large & ~device),
        ("deadline", candidates.fits & ~candidates.in_time),
    ):
        if rows.any():
            reasons[reason] = int(rows.sum())
    return reasons


def front_of(candidates: Candidates) -> Candidates:
    """The front of step time against peak memory, fastest first."""
    kept = candidates.take(front(candidates.step_seconds, candidates.peak_bytes))
    return kept.take(np.argsort(kept.step_seconds, kind="stable"))


def _first(candidates: Candidates, count: int) -> Candidates:
    return candidates.take(candidates.order()[:count])


def _best_of_each_family(candidates: Candidates) -> Candidates:
    order = candidates.order()
    table = candidates.table
    families: IntColumn = candidates.cluster
    for column, values in (
        (table.framework, len(FRAMEWORKS)),
        (table.tensor_parallel_size, LARGEST_SIZE),
        (table.pipeline_parallel_size > 1, 2),
    ):
        families = families * values + column
    _, first = np.unique(families[order], return_index=True)
    return candidates.take(order[first])
