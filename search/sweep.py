"""Goes through the whole lattice in blocks and scores all of it that can matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.codes import VIOLATIONS, bit
from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, PartialColumns
from search.axes import Offload
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.lattice import BLOCK_ROWS, Columns, Lattice, blocks, build_lattice, keep, rows_of
from search.result import Progress, StoppedBy
from search.startable import searched, startable
from search.swept import NEAREST, Keeper, Sweep, merge
from search.watch import Watch

LEANEST_SLACK: Final = 1.05
"""Of the capacity. What counts as the leanest candidate can need a little more than its relatives: recomputing the
only layer of a stage keeps its input beside what would be kept anyway."""
MICRO_BATCH_RULES: Final = bit(VIOLATIONS, "batch_not_divisible") | bit(
    VIOLATIONS, "micro_batches_not_multiple_of_stages"
)
"""Rules that another micro-batch size may keep."""


def sweep(evaluator: Evaluator, frameworks: Sequence[str], watch: Watch, report: Callable[[Progress], None]) -> Sweep:
    """Score every candidate of every framework on every cluster size, or as many as the budget allows.

    Ruled out without a score of their own are candidates whose leanest relative (all recomputed, all offloaded, the
    smallest micro-batch) does not fit at even odds, with the least that corrections can make of its figures; and,
    except where the objective is the front, offloads and partly recomputed stages of what fits without, which only take
    longer. Lattices take turns of a block each, so that where the time ends early each of them had its share.
    """
    clusters = evaluator.search.clusters
    keepers = [Keeper(evaluator) for _ in clusters]
    lattices = [
        _LatticeSweep(evaluator, keepers[index], index, build_lattice(evaluator.search, cluster, framework))
        for index, cluster in enumerate(clusters)
        for framework in FRAMEWORKS
        if framework.name in frameworks
    ]
    evaluator.assumptions.update(dict.fromkeys(words for one in lattices for words in one.lattice.axes.assumptions))
    stopped_by = _take_turns(lattices, watch, report)
    unfinished = {one.cluster for one in lattices if not one.finished}
    combinations = Counter[int]()
    for one in lattices:
        combinations[one.cluster] += one.lattice.axes.combinations
    return merge(
        [
            keeper.sweep(combinations[index], stopped_by if index in unfinished else None)
            for index, keeper in enumerate(keepers)
        ]
    )


def _take_turns(
    lattices: Sequence[_LatticeSweep], watch: Watch, report: Callable[[Progress], None]
) -> StoppedBy | None:
    """Score a block of each, again and again, until all are through or the time ends."""
    layouts = sum(len(one.lattice) for one in lattices)
    done = 0
    while waiting := [one for one in lattices if not one.finished]:
        for one in waiting:
            if stopped_by := watch.stopped_by():
                return stopped_by
            one.take_turn()
            if one.finished:
                done += len(one.lattice)
                found = [other.keeper.best_step_seconds() for other in lattices]
                report(Progress("lattice", done, layouts, 0, min((s for s in found if s is not None), default=None)))
    return None


@dataclass(frozen=True)
class _Found:
    """What is known of rows under each checkpointing, (rows, choices)."""

    fits: BoolColumn
    """With the offloads tried so far."""
    possible: BoolColumn
    """The same at even odds."""


class _LatticeSweep:
    """One lattice, from layouts down to candidates."""

    def __init__(self, evaluator: Evaluator, keeper: Keeper, cluster: int, lattice: Lattice) -> None:
        self.evaluator, self.keeper = evaluator, keeper
        self.cluster, self.lattice = cluster, lattice
        self.wants_front = evaluator.search.objective == "pareto"
        self.corrected = evaluator.search.corrections is not None
        self.finished = False
        self._turns = self._blocks()

    def take_turn(self) -> None:
        """Score the next block; the last one finishes the lattice."""
        if (rows := next(self._turns, None)) is not None:
            self._score(rows)
        else:
            self.keeper.time_pending()
            self.finished = True

    def _blocks(self) -> Iterator[Columns]:
        """Rows that are possible, so many at a time."""
        size = BLOCK_ROWS // len(self.lattice.axes.checkpointing)
        for layouts in self.lattice.layout_blocks():
            yield from blocks(self.lattice.with_micro_batches(self._possible_layouts(layouts)), size)

    def _possible_layouts(self, layouts: Columns) -> Columns:
        """Layouts that can be started and are possible with their smallest micro-batch."""
        smallest, rows = self.lattice.with_smallest_micro_batch(layouts)
        table = self.evaluator.resolve(self.cluster, self.lattice.leanest(smallest))
        able = np.flatnonzero(startable(self.evaluator.search, self.cluster, table))
        smallest, rows = keep(smallest, able), rows[able]
        if not len(rows):
            return keep(layouts, rows)
        sizes = self.lattice.micro_batch_choices(smallest).sum(axis=1)
        variants = self.lattice.variants() * sizes
        return keep(layouts, rows[self._screen(self.lattice.leanest(smallest), variants, forgiven=MICRO_BATCH_RULES)])

    def _screen(self, partial: PartialColumns, variants: IntColumn, *, forgiven: np.uint64) -> BoolColumn:
        """(n,) whether the leanest candidate of each row is possible; others are counted with all their variants."""
        screening = self.evaluator.screen(self.cluster, self.evaluator.resolve(self.cluster, partial))
        too_large = screening.needed_bytes > self.evaluator.search.capacity_bytes * LEANEST_SLACK
        broken = (screening.violations & ~forgiven) > 0
        self.keeper.count(screening.violations, np.where(broken, variants, 0))
        if too_large.any():
            self.keeper.rejected["out_of_memory"] += int(variants[too_large].sum())
            self._keep_nearest(partial, screening.needed_bytes, too_large)
        possible: BoolColumn = ~(too_large | broken)
        return possible

    def _keep_nearest(self, partial: PartialColumns, needed_bytes: FloatColumn, too_large: BoolColumn) -> None:
        if self.keeper.fits_something:
            return
        rows = np.flatnonzero(too_large)
        rows = rows[np.argsort(needed_bytes[rows], kind="stable")[:NEAREST]]
        columns = {name: column[rows] for name, column in partial.columns.items()}
        self.keeper.add_nearest(self._judge(PartialColumns(columns, partial.layouts))[0])

    def _score(self, columns: Columns) -> None:
        """Score rows with all checkpointing and offload, least offload first."""
        axes = self.lattice.axes
        shape = (rows_of(columns), len(axes.checkpointing))
        found = _Found(np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_))
        partly = list(axes.partly_checkpointed)
        whole = [choice for choice in range(len(axes.checkpointing)) if choice not in partly]
        for offload in axes.offload:
            rows = np.flatnonzero(self.lattice.can_offload(columns, offload[0]))
            if not self.wants_front:
                rows = rows[~found.fits[rows].all(axis=1)]
            if not len(rows):
                continue
            leanest = self.lattice.leanest_with(keep(columns, rows), offload)
            rows = rows[self._screen(leanest, np.full(len(rows), shape[1]), forgiven=np.uint64(0))]
            self._score_choices(columns, rows, whole, offload, found)
            if partly and len(rows):
                # A part of the stage is worth recomputing where all of it fits and nothing does not. With corrections
                # the part may fit where all of it does not: the screening decides alone.
                needed = found.possible[rows, whole[-1]] | self.corrected
                if axes.checkpointing[0][0] == "none" and not self.wants_front:
                    needed &= ~found.fits[rows, 0]
                self._score_choices(columns, rows[needed], partly, offload, found)

    def _score_choices(
        self, columns: Columns, rows: IntColumn, choices: Sequence[int], offload: Offload, found: _Found
    ) -> None:
        """Score some rows under some checkpointing and one offload, except what fits with less offload."""
        if not len(rows):
            return
        crossed = self.lattice.with_checkpointing({**keep(columns, rows), "row": rows}, choices)
        if not self.wants_front:
            crossed = keep(crossed, ~found.fits[crossed["row"], crossed["choice"]])
        if not rows_of(crossed):
            return
        candidates, inside = self._judge(self.lattice.with_offload(crossed, offload))
        self.keeper.add(candidates.take(inside))
        place = (crossed["row"], crossed["choice"])
        found.fits[place] |= candidates.fits & inside
        found.possible[place] |= candidates.fits | candidates.fits_at_even_odds

    def _judge(self, partial: PartialColumns) -> tuple[Candidates, BoolColumn]:
        """Rules and memory, and which rows have the values that `space` names."""
        table = self.evaluator.resolve(self.cluster, partial)
        return self.evaluator.judge(self.cluster, table), searched(self.evaluator.search, self.cluster, table)
