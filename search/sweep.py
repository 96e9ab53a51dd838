"""Goes through the whole lattice in blocks and scores all of it that can matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from cost_models.codes import VIOLATIONS, bit
from cost_models.frameworks import FRAMEWORKS
from cost_models.strategy import BoolColumn, FloatColumn, PartialColumns
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.lattice import BLOCK_ROWS, Columns, Lattice, blocks, build_lattice, keep, rows_of
from search.result import Progress, StoppedBy
from search.space import allows
from search.swept import NEAREST, Keeper, Sweep
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
    smallest micro-batch) does not fit at even odds; and, except where the objective is the front, offloads and partly
    recomputed stages of what fits without, which only take longer.
    """
    lattices = [
        (index, build_lattice(evaluator.search, cluster, framework))
        for index, cluster in enumerate(evaluator.search.clusters)
        for framework in FRAMEWORKS
        if framework.name in frameworks
    ]
    layouts = sum(len(lattice) for _, lattice in lattices)
    keeper = Keeper(evaluator)
    stopped_by: StoppedBy | None = None
    for index, lattice in lattices:
        stopped_by = _LatticeSweep(evaluator, keeper, index, lattice).run(watch)
        if stopped_by is not None:
            break
        keeper.layouts += len(lattice)
        report(Progress("lattice", keeper.layouts, layouts, 0, keeper.best_step_seconds()))
    return keeper.sweep(sum(lattice.axes.combinations for _, lattice in lattices), stopped_by)


class _LatticeSweep:
    """One lattice, from layouts down to candidates."""

    def __init__(self, evaluator: Evaluator, keeper: Keeper, cluster: int, lattice: Lattice) -> None:
        self.evaluator, self.keeper = evaluator, keeper
        self.cluster, self.lattice = cluster, lattice
        self.wants_front = evaluator.search.objective == "pareto"

    def run(self, watch: Watch) -> StoppedBy | None:
        """Score it; say why not all of it could be."""
        for layouts in self.lattice.layout_blocks():
            for block in blocks(self.lattice.with_micro_batches(self._possible_layouts(layouts)), BLOCK_ROWS):
                for rows in blocks(self._possible(block), BLOCK_ROWS // len(self.lattice.axes.checkpointing)):
                    if stopped_by := watch.stopped_by():
                        return stopped_by
                    self._score(rows)
        return watch.stopped_by()

    def _possible_layouts(self, layouts: Columns) -> Columns:
        """Layouts that are possible with their smallest micro-batch."""
        smallest, rows = self.lattice.with_smallest_micro_batch(layouts)
        sizes = self.lattice.micro_batch_choices(smallest).sum(axis=1)
        possible = self._screen(smallest, self.lattice.variants() * sizes, forgiven=MICRO_BATCH_RULES)
        return keep(layouts, rows[possible])

    def _possible(self, columns: Columns) -> Columns:
        variants = np.full(rows_of(columns), self.lattice.variants())
        return keep(columns, self._screen(columns, variants, forgiven=np.uint64(0)))

    def _screen(self, columns: Columns, variants: FloatColumn, *, forgiven: np.uint64) -> BoolColumn:
        """(n,) whether the leanest candidate of each row is possible; others are counted with all their variants."""
        if not rows_of(columns):
            return np.zeros(0, dtype=np.bool_)
        partial = self.lattice.leanest(columns)
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
        self.keeper.add_nearest(self._evaluate(PartialColumns(columns, partial.layouts))[0])

    def _score(self, columns: Columns) -> None:
        """Score rows with all checkpointing and offload; parts of a stage where all of it fits and nothing does not."""
        axes = self.lattice.axes
        choices = axes.whole_checkpointing
        fits, possible = self._score_rows(self.lattice.with_checkpointing(columns, choices))
        if not axes.partial_checkpointing:
            return
        needed = possible.reshape(-1, len(choices))[:, -1]
        if ("none", None) in choices and not self.wants_front:
            needed &= ~fits.reshape(-1, len(choices))[:, choices.index(("none", None))]
        some = keep(columns, needed)
        if rows_of(some):
            self._score_rows(self.lattice.with_checkpointing(some, axes.partial_checkpointing))

    def _score_rows(self, rows: Columns) -> tuple[BoolColumn, BoolColumn]:
        """(n,) which rows fit without offload, and which may fit with or without it at even odds."""
        fits = np.zeros(rows_of(rows), dtype=np.bool_)
        possible = fits.copy()
        offloadable = ~fits
        plain = self.lattice.plain(rows)
        if plain is not None:
            candidates, inside = self._evaluate(plain)
            self.keeper.add(candidates.take(inside))
            fits = candidates.fits & inside
            possible = candidates.fits | candidates.fits_at_even_odds
            offloadable = candidates.valid if self.wants_front else candidates.valid & ~candidates.fits
        chosen = np.flatnonzero(offloadable)
        for partial, which in self.lattice.offloaded(keep(rows, chosen)):
            candidates, inside = self._evaluate(partial)
            self.keeper.add(candidates.take(inside))
            possible[chosen[which]] |= candidates.fits | candidates.fits_at_even_odds
        return fits, possible

    def _evaluate(self, partial: PartialColumns) -> tuple[Candidates, BoolColumn]:
        """Scores, and which rows have the values that `space` names."""
        table = self.evaluator.resolve(self.cluster, partial)
        candidates = self.evaluator.evaluate(self.cluster, table, only_bounding_stages=True)
        return candidates, allows(self.evaluator.search.space, table)
