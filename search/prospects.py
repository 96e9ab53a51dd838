"""What the study starts from: the lattice's best layouts, and those that are better with less recomputed or offloaded.

A layout of the lattice that has to recompute or offload is worth another look where it would win without: it is fitted
with as little as will do, of layers, of modules, of the optimizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from cost_models.framework import Framework
from cost_models.frameworks import FRAMEWORKS
from cost_models.layouts import largest_stages
from cost_models.rules import recomputable_modules
from cost_models.strategy import RECOMPUTE_MODULES, FloatColumn, StrategyTable, code, concatenate
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.fitting import fit_finely, least
from search.problem import SearchProblem
from search.startable import searched
from search.study_space import KNOB_FREE_FIELDS
from search.swept import Sweep

BEST_LAYOUTS: Final = 12
FAMILY_LAYOUTS: Final = 8
FITTED_LAYOUTS: Final = 24
UNFITTING_LAYOUTS: Final = 4
"""Layouts that do not fit on the lattice and may with finer knobs."""
MOST_PROMISING: Final = 256
"""Variants fitted, in order of what they would take with nothing recomputed and offloaded."""
VARIANT_FIELDS: Final = (*KNOB_FREE_FIELDS, "micro_batch_size", "virtual_pipeline_size", "pipeline_schedule", "offload")

Recomputation = tuple[str, tuple[str, ...]]
"""A mode of checkpointing, and the modules of a selective one."""


def study_seeds(evaluator: Evaluator, swept: Sweep, current: Candidates | None) -> Candidates:
    """The best of each layout, by objective as it was fitted, by family, along the front, `current`; then layouts that
    nearly fit."""
    plans = [
        (swept.front, BEST_LAYOUTS if evaluator.search.objective == "pareto" else 0),
        (swept.best, BEST_LAYOUTS),
        (swept.families, FAMILY_LAYOUTS),
        (fitted_prospects(evaluator, swept), FITTED_LAYOUTS),
    ]
    if current is not None:
        plans.append((current.take(current.acceptable), 1))
    most = UNFITTING_LAYOUTS if len(swept.best) else BEST_LAYOUTS
    others = [(swept.tight, most), (swept.nearest, most), (swept.late, most)]
    found = (join([_distinct(part, count) for part, count in group]) for group in (plans, others))
    return _distinct(join([part.take(part.order()) for part in found]))


def fitted_prospects(evaluator: Evaluator, swept: Sweep) -> Candidates:
    """Variants of the lattice's plans that beat the best of them once they are fitted, best first."""
    best = float(swept.best.objective.min(initial=np.inf))
    variants = swept.best.take(swept.best.first_of_each(VARIANT_FIELDS))
    found = [swept.best.take(slice(0, 0))]
    for cluster in np.unique(variants.cluster).tolist():
        table = variants.table.take(variants.cluster == cluster)
        promise = _objective(evaluator, cluster, _recomputing(table, ("none", ()), offloading=False))
        order = np.argsort(promise, kind="stable")[:MOST_PROMISING]
        ways = [*_ways(evaluator.search, table.take(order[promise[order] < best]))]
        if ways:
            possible = concatenate(ways)
            possible = possible.take(_objective(evaluator, cluster, least(possible)) < best)
            fitted = fit_finely(evaluator, cluster, possible)
            found.append(fitted.take(fitted.acceptable & searched(evaluator.search, cluster, fitted.table)))
    better = join(found)
    return better.take(better.order())


def _ways(search: SearchProblem, table: StrategyTable) -> Iterator[StrategyTable]:
    """The strategies with every recomputation, each without and with their own offload."""
    offloads = table.offload != code("offload", "none")
    for index, framework in enumerate(FRAMEWORKS):
        own = table.framework == index
        for recomputation in _recomputations(search, framework) if own.any() else ():
            yield _recomputing(table.take(own), recomputation, offloading=False)
            yield _recomputing(table.take(own & offloads), recomputation, offloading=True)


def _recomputations(search: SearchProblem, framework: Framework) -> Iterator[Recomputation]:
    for mode in framework.activation_checkpointing:
        if mode == "selective" and framework.recompute_modules:
            yield from ((mode, modules) for modules in _module_sets(search, framework))
        else:
            yield mode, ()


def _module_sets(search: SearchProblem, framework: Framework) -> Iterator[tuple[str, ...]]:
    """Sets of modules of which none recomputes what another does already, nor what flash attention never kept."""
    modules = recomputable_modules(framework, search.model)
    if search.workload.attention == "flash":
        modules = tuple(name for name in modules if name != "core_attn")
    for size in range(1, len(modules) + 1):
        yield from (chosen for chosen in itertools.combinations(modules, size) if not {"moe", "moe_act"} <= {*chosen})


def _recomputing(table: StrategyTable, recomputation: Recomputation, *, offloading: bool) -> StrategyTable:
    """With this recomputation of as many layers, and as much of their own offload, as there can be."""
    mode, modules = recomputation
    rows = np.ones(len(table), dtype=np.int64)
    stages = largest_stages(table.layouts, table.layers_per_stage, table.pipeline_parallel_size)
    return replace(
        table,
        activation_checkpointing=rows * code("activation_checkpointing", mode),
        recompute_modules=rows * sum(1 << RECOMPUTE_MODULES.index(module) for module in modules),
        checkpointed_layers=rows * 0 if mode == "none" else stages,
        offload=table.offload if offloading else rows * code("offload", "none"),
        offload_fraction=np.ones(len(table)),
    )


def _objective(evaluator: Evaluator, cluster: int, table: StrategyTable) -> FloatColumn:
    """(n,) whether it fits or not; infinite where a rule is broken."""
    objective: FloatColumn = np.nan_to_num(evaluator.evaluate(cluster, table).objective, nan=np.inf)
    return objective


def _distinct(candidates: Candidates, most: int | None = None) -> Candidates:
    return candidates.take(candidates.first_of_each(KNOB_FREE_FIELDS)[:most])
