"""Layers moved between the stages of a pipeline, one at a time, as long as the step gets shorter.

The layouts of the lattice balance stages by matrix FLOP; where something else takes the time (experts' traffic, a head
that costs less than it computes) the best split is a layer or two away, which one look at the neighbours tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from cost_models.frameworks import framework_named
from cost_models.layouts import largest_stages
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.startable import searched
from search.watch import Watch

MOST_MOVES: Final = 4
"""Of one plan."""
OUTER_RANKS: Final = 3
"""Ranks with most and with fewest layers that give and take, besides the two ends of the pipeline."""


def shift_layers(evaluator: Evaluator, plans: Candidates, watch: Watch) -> Candidates:
    """The plans that get faster by moving layers, as fast as they get; those that do not are left out."""
    best = plans.take(np.array([row for row in range(len(plans)) if _may_shift(evaluator, plans, row)], dtype=np.int64))
    found = [plans.take(slice(0, 0))]
    for _ in range(MOST_MOVES):
        if not len(best) or watch.stopped_by() is not None:
            break
        best = _moved(evaluator, best)
        found.append(best)
    return join(found)


def _may_shift(evaluator: Evaluator, plans: Candidates, row: int) -> bool:
    framework = framework_named(plans.table.value("framework", row))
    return (
        "layers_per_stage" not in evaluator.search.space
        and bool(plans.table.pipeline_parallel_size[row] > 1)
        and framework.uneven_layers
        and not framework.splits_layers_by_cost
    )


def _moved(evaluator: Evaluator, plans: Candidates) -> Candidates:
    """Each plan with the best single move, where there is one that makes it faster."""
    better = [plans.take(slice(0, 0))]
    for cluster in np.unique(plans.cluster).tolist():
        own = plans.take(plans.cluster == cluster)
        ways = [(row, way) for row in range(len(own)) for way in _moves(own, row)]
        if not ways:
            continue
        scored = evaluator.evaluate_strategies(cluster, [way for _, way in ways])
        rows = np.array([row for row, _ in ways])
        faster = scored.acceptable & searched(evaluator.search, cluster, scored.table)
        faster &= scored.objective < own.objective[rows]
        order = np.flatnonzero(faster)[np.argsort(scored.objective[faster], kind="stable")]
        _, first = np.unique(rows[order], return_index=True)
        better.append(scored.take(order[first]))
    return join(better)


def _moves(plans: Candidates, row: int) -> Iterator[dict[str, Any]]:
    """Strategies with a layer moved from the fullest chunk of one rank to the emptiest of another."""
    strategy = plans.table.row(row)
    stages, chunks = strategy["pipeline_parallel_size"], strategy["layers_per_stage"]
    whole = largest_stages((tuple(chunks),), np.zeros(1, dtype=np.int64), np.array([stages]))[0]
    if strategy["checkpointed_layers"] >= whole:
        # All of a stage is left out, so that all of a larger one is meant too.
        del strategy["checkpointed_layers"]
    loads = [sum(chunks[rank::stages]) for rank in range(stages)]
    order = sorted(range(stages), key=lambda rank: loads[rank])
    ends = {0, stages - 1}
    for giver, taker in itertools.product({*order[-OUTER_RANKS:], *ends}, {*order[:OUTER_RANKS], *ends}):
        if giver != taker and loads[giver]:
            layers = list(chunks)
            layers[_chunk(chunks, giver, stages, fullest=True)] -= 1
            layers[_chunk(chunks, taker, stages, fullest=False)] += 1
            yield {**strategy, "layers_per_stage": layers}


def _chunk(chunks: Sequence[int], rank: int, stages: int, *, fullest: bool) -> int:
    own = range(rank, len(chunks), stages)
    return (max if fullest else min)(own, key=lambda chunk: chunks[chunk])
