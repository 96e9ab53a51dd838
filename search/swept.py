"""What a sweep keeps of the lattice: a shortlist, the best of each family, the front, near misses, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.codes import VIOLATIONS, CodeColumn, decode
from cost_models.frameworks import FRAMEWORKS
from cost_models.resolve import LARGEST_SIZE
from cost_models.strategy import FloatColumn, IntColumn
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.pareto import front
from search.result import StoppedBy

SHORTLIST: Final = 4096
"""Candidates kept in order of the objective: more than any ranking walks through."""
NEAREST: Final = 256
"""Candidates kept in order of how little they miss by."""
PENDING_ROWS: Final = 65_536
"""Rows that wait for their time at most, of all cluster sizes together: when a search has to stop they still do."""


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
    """Fit, but miss the deadline; the least late first."""
    nearest: Candidates
    """Valid and too large, by what they need; kept up while nothing fits."""
    space_size: int
    evaluated: int
    """Valid candidates that were scored."""
    rejected: Counter[str]
    stopped_by: StoppedBy | None
    """Why not all of the lattice was scored; None: it was."""
    of_sizes: tuple[Sweep, ...] = ()
    """The same of each cluster size alone, in the order of `SearchProblem.clusters`."""

    @property
    def best_step_seconds(self) -> float | None:
        """Of the plans."""
        return float(self.best.step_seconds.min()) if len(self.best) else None


class Keeper:
    """What is kept of the blocks seen so far of one cluster size.

    Time is asked of what fits only, of many blocks in one call: a call costs as much as some thousands of rows.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluated = 0
        self.rejected: Counter[str] = Counter()
        self._evaluator = evaluator
        self._most_pending = PENDING_ROWS // len(evaluator.search.clusters)
        self._pending: list[Candidates] = []
        self._fits_something = False
        empty = evaluator.evaluate_strategies(0, [])
        self._best = self._families = self._front = self._tight = self._late = self._nearest = empty

    @property
    def fits_something(self) -> bool:
        """Whether near misses have lost their interest."""
        return self._fits_something

    def add(self, block: Candidates) -> None:
        """Keep the best of a block whose time is not known yet."""
        self.rejected.update(_rejections(block, self._evaluator.search.capacity_bytes))
        self.evaluated += int(np.count_nonzero(block.valid))
        self._pending.append(block.take(block.fits | block.fits_at_even_odds))
        if self._evaluator.search.deadline_days is None:
            self._fits_something |= bool(block.fits.any())
        if self._evaluator.search.deadline_days is not None or sum(map(len, self._pending)) > self._most_pending:
            self.time_pending()
        if not self.fits_something:
            self.add_nearest(block.take(block.valid & ~block.fits))

    def time_pending(self) -> None:
        """Keep the best of what was added since the last call."""
        block = self._evaluator.with_time(join(self._pending)) if self._pending else self._best.take(slice(0, 0))
        self._pending = []
        if late := int(np.count_nonzero(block.fits & ~block.in_time)):
            self.rejected["deadline"] += late
        plans = block.take(block.acceptable)
        if len(plans):
            self._fits_something = True
            self._best = _first(join([self._best, self._contenders(plans)]), SHORTLIST)
            self._families = _best_of_each_family(join([self._families, _best_of_each_family(plans)]))
            self._front = front_of(join([self._front, front_of(plans)]))
        self._tight = _with(self._tight, block.take(block.tight))
        self._late = _with(self._late, block.take(block.fits & ~block.in_time))

    def _contenders(self, plans: Candidates) -> Candidates:
        """Plans that may enter the shortlist."""
        if len(self._best) == SHORTLIST:
            plans = plans.take(plans.objective <= self._best.objective[-1])
        return _first(plans, SHORTLIST)

    def add_nearest(self, misses: Candidates) -> None:
        """Keep the nearest of candidates that do not fit."""
        misses = join([self._nearest, misses.take(misses.valid)])
        self._nearest = misses.take(np.argsort(misses.needed_bytes, kind="stable")[:NEAREST])

    def count(self, violations: CodeColumn, times: IntColumn | FloatColumn) -> None:
        """Count broken rules, each row so many times."""
        _count(self.rejected, violations, times)

    def best_step_seconds(self) -> float | None:
        """Of the plans kept so far."""
        return float(self._best.step_seconds.min()) if len(self._best) else None

    def sweep(self, space_size: int, stopped_by: StoppedBy | None) -> Sweep:
        """All that was kept."""
        self.time_pending()
        return Sweep(
            best=self._best,
            families=self._families.take(self._families.order()),
            front=self._front,
            tight=self._tight,
            late=self._late,
            nearest=self._evaluator.with_time(self._nearest),
            space_size=space_size,
            evaluated=self.evaluated,
            rejected=self.rejected,
            stopped_by=stopped_by,
        )


def merge(sizes: Sequence[Sweep]) -> Sweep:
    """Sweeps of the cluster sizes as one: the best of all of them."""
    nearest = join([size.nearest for size in sizes])
    families, late = join([size.families for size in sizes]), join([size.late for size in sizes])
    return Sweep(
        best=_first(join([size.best for size in sizes]), SHORTLIST),
        families=families.take(families.order()),
        front=front_of(join([size.front for size in sizes])),
        tight=_first(join([size.tight for size in sizes]), NEAREST),
        late=late.take(np.argsort(late.step_seconds, kind="stable")[:NEAREST]),
        nearest=nearest.take(np.argsort(nearest.needed_bytes, kind="stable")[:NEAREST]),
        space_size=sum(size.space_size for size in sizes),
        evaluated=sum(size.evaluated for size in sizes),
        rejected=sum((size.rejected for size in sizes), Counter[str]()),
        stopped_by=next((size.stopped_by for size in sizes if size.stopped_by), None),
        of_sizes=tuple(sizes),
    )


def rejections(candidates: Candidates, capacity_bytes: float) -> Counter[str]:
    """How many candidates each rule, the memory, the host and the deadline ruled out; some for several reasons."""
    reasons = _rejections(candidates, capacity_bytes)
    if late := int(np.count_nonzero(candidates.fits & ~candidates.in_time)):
        reasons["deadline"] = late
    return reasons


def _rejections(candidates: Candidates, capacity_bytes: float) -> Counter[str]:
    """The same but for the deadline."""
    reasons: Counter[str] = Counter()
    _count(reasons, candidates.violations, np.ones(len(candidates)))
    too_large = candidates.valid & ~candidates.fits
    device = too_large & (candidates.needed_bytes > capacity_bytes)
    for reason, rows in (("out_of_memory", device), ("host_memory_short", too_large & ~device)):
        if rows.any():
            reasons[reason] = int(rows.sum())
    return reasons


def _count(reasons: Counter[str], violations: CodeColumn, times: IntColumn | FloatColumn) -> None:
    broken = np.flatnonzero(violations)
    masks, which = np.unique(violations[broken], return_inverse=True)
    counts = np.bincount(which, weights=times[broken], minlength=len(masks))
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        if count:
            reasons.update(dict.fromkeys(decode(VIOLATIONS, mask), int(count)))


def front_of(candidates: Candidates) -> Candidates:
    """The front of step time against peak memory, fastest first."""
    kept = candidates.take(front(candidates.step_seconds, candidates.peak_bytes))
    return kept.take(np.argsort(kept.step_seconds, kind="stable"))


def _with(nearly: Candidates, more: Candidates) -> Candidates:
    return _first(join([nearly, more]), NEAREST) if len(more) else nearly


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
