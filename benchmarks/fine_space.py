"""The best of the study's whole space by branch and bound: all layouts of the lattice, all settings of their knobs.

Recomputing or offloading more makes no step faster, so what a point takes with nothing recomputed and nothing offloaded
is a bound for all points below it: those that are no faster than the best plan known are left out, the rest is fitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from cost_models.frameworks import framework_named
from cost_models.strategy import StrategyTable
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.fitting import fit_finely, least
from search.lattice import Columns, Lattice, blocks, build_lattice, keep
from search.optuna_engine import proposed
from search.problem import SearchProblem
from search.startable import searched
from search.study_space import ENDS, KNOB_FREE_FIELDS, RELIEF_LAYERS, Layout, Parameters, StudySpace, study_layouts
from search.sweep import LEANEST_SLACK

BLOCK_LAYOUTS: Final = 4096
BLOCK_POINTS: Final = 2048
MOVED_GAIN: Final = 1.1
"""More than layers moved between stages, another ring and another shard group can save of a balanced pipeline."""
RELIEFS: Final = tuple(itertools.product(range(-RELIEF_LAYERS, RELIEF_LAYERS + 1), repeat=2))


def best_of_fine_space(search: SearchProblem, frameworks: Sequence[str], known: float) -> float:
    """Objective of the best plan there is; `known`: of the best plan known."""
    branches = _Branches(search, known)
    for index, cluster in enumerate(search.clusters):
        for name in frameworks:
            lattice = build_lattice(search, cluster, framework_named(name))
            for layouts in blocks(lattice.layouts, BLOCK_LAYOUTS):
                branches.close(index, branches.possible(index, lattice, layouts))
    return branches.best


class _Branches:
    """What is left to look at, and the best plan so far."""

    def __init__(self, search: SearchProblem, known: float) -> None:
        self.evaluator, self.best = Evaluator(search), known

    def possible(self, cluster: int, lattice: Lattice, layouts: Columns) -> Candidates:
        """Layouts with each micro-batch that fit as lean as they can be and are fast enough with nothing of it."""
        rows = lattice.with_micro_batches(layouts)
        screening = self.evaluator.screen(cluster, self.evaluator.resolve(cluster, lattice.leanest(rows)))
        capacity_bytes = self.evaluator.search.capacity_bytes
        able = screening.violations == 0
        if lattice.axes.checkpointing[-1][0] == "full":
            # Otherwise some set of modules may keep less than the lattice's leanest.
            able &= screening.needed_bytes <= capacity_bytes * LEANEST_SLACK
        free = lattice.with_offload(lattice.with_checkpointing(keep(rows, able), [0]), lattice.axes.offload[0])
        found = self.evaluator.evaluate(cluster, self.evaluator.resolve(cluster, free))
        return found.take(_priced(found) < self.best * MOVED_GAIN)

    def close(self, cluster: int, possible: Candidates) -> None:
        """Look at every point of some layouts."""
        if not len(possible):
            return
        possible = possible.take(possible.order())
        seeds = possible.take(possible.first_of_each(KNOB_FREE_FIELDS))
        space = StudySpace(self.evaluator.search, study_layouts(self.evaluator.search, seeds))
        starts = [space.encode(cluster, possible.table.row(row)) for row in range(len(possible))]
        groups = self._faster(cluster, space, _distinct(_groups(space, starts)), MOVED_GAIN)
        moved = self._faster(cluster, space, _moved(space, groups), 1.0)
        for table in self._tables(cluster, space, list(_recomputed(space, moved))):
            bound = self.evaluator.evaluate(cluster, least(table))
            left = table.take(_priced(bound) < self.best)
            if len(left):
                found = fit_finely(self.evaluator, cluster, left)
                wanted = searched(self.evaluator.search, cluster, found.table)
                self.best = min(self.best, float(found.objective[found.acceptable & wanted].min(initial=np.inf)))

    def _faster(self, cluster: int, space: StudySpace, points: Sequence[Parameters], slack: float) -> list[Parameters]:
        """Points that with nothing recomputed and offloaded are faster than the best plan."""
        tables = self._tables(cluster, space, points)
        prices = np.concatenate([_priced(self.evaluator.evaluate(cluster, table)) for table in tables] or [np.zeros(0)])
        return [points[row] for row in np.flatnonzero(prices < self.best * slack)]

    def _tables(self, cluster: int, space: StudySpace, points: Sequence[Parameters]) -> Iterator[StrategyTable]:
        for begin in range(0, len(points), BLOCK_POINTS):
            part = points[begin : begin + BLOCK_POINTS]
            yield proposed(self.evaluator, cluster, [space.decode(point) for point in part])


def _priced(candidates: Candidates) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(n,) objective, infinite where a rule is broken."""
    return np.nan_to_num(candidates.objective, nan=np.inf)


def _layout(space: StudySpace, point: Parameters) -> Layout:
    return space.layouts[point.get("layout", 0)]


def _set(space: StudySpace, point: Parameters, **knobs: Any) -> Parameters:
    """The point with some knobs set, those that have a choice."""
    return {**point, **{name: value for name, value in knobs.items() if name in space.distributions}}


def _distinct(points: Iterator[Parameters]) -> list[Parameters]:
    return list({tuple(point.items()): point for point in points}.values())


def _groups(space: StudySpace, starts: Sequence[Parameters]) -> Iterator[Parameters]:
    """Every kind of context parallelism and every shard group, nothing recomputed or offloaded."""
    for start in starts:
        layout = _layout(space, start)
        for kind, group in itertools.product(layout.context_kinds, range(len(layout.replicates))):
            free = {"checkpointing": "none", "offload": "none", "balanced_layers": False, **dict.fromkeys(ENDS, 0)}
            yield _set(space, start, context_kind=kind, shard_group=group, **free)


def _moved(space: StudySpace, points: Sequence[Parameters]) -> list[Parameters]:
    """Every split of the layers."""
    moved: list[Parameters] = []
    for point in points:
        splits: Mapping[str, Any]
        reliefs = RELIEFS if _layout(space, point).uneven else ((0, 0),)
        balances = (False, True) if _layout(space, point).uneven else (False,)
        for balanced, relief in itertools.product(balances, reliefs):
            splits = dict(zip(ENDS, relief, strict=True))
            moved.append(_set(space, point, balanced_layers=balanced, **splits))
    return moved


def _recomputed(space: StudySpace, points: Sequence[Parameters]) -> Iterator[Parameters]:
    """Every mode of checkpointing, every set of modules and every kind of offload."""
    for point in points:
        layout = _layout(space, point)
        for mode, offload in itertools.product(layout.modes, layout.offloads):
            modules = layout.modules if mode == "selective" else ()
            for chosen in itertools.product((False, True), repeat=len(modules)):
                knobs = {f"recompute_{module}": on for module, on in zip(modules, chosen, strict=True)}
                yield _set(space, point, checkpointing=mode, offload=offload, **knobs)
