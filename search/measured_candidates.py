"""Which strategies are worth a real run: those that are the best plan of some cluster that ours may turn out to be.

The cost models say what a plan takes on the cluster as they know it. The real one is off by a factor, and by others for
each framework and each part of a step (`measured_model` has the deviations of all of them), and a plan may need more
memory than they say. Such clusters are drawn at random, and the best plan on each of them is a candidate; the plans
that the analytical search found come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from cost_models.frameworks import FRAMEWORKS
from cost_models.results import TIME_PARTS
from cost_models.stages import all_stages
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn
from cost_models.time import estimate_time
from cost_models.units import GIB
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.measured_model import FRAMEWORK_DEVIATION, PART_DEVIATIONS
from search.measured_pool import MeasuredPool
from search.problem import DEFAULT_FRAMEWORKS, SearchProblem
from search.rank import answers, rescore
from search.sweep import sweep
from search.watch import Watch

LEAN_ROOMS: Final = (1.0, 0.9, 0.8)
"""Shares of the memory in which the lattice is swept: the first plans of each are kept."""
ROOMS: Final = (1.05, 1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8)
"""Shares of the memory that requirements must keep to on the clusters that are drawn: from over- to underestimated."""
WORLDS: Final = 256
"""Clusters drawn for each of them."""
BLOCK_WORLDS: Final = 64
PLACES: Final = 3
"""First plans of each cluster that are candidates: what no factor of a part explains may turn their order."""
MOST_CANDIDATES: Final = 400
LEAST_DEVIATION: Final = 1e-3
"""Of a requirement: rounding."""
EVEN_ODDS: Final = 0.5


def build_pool(
    search: SearchProblem,
    plans: Sequence[Mapping[str, Any]],
    *,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
) -> MeasuredPool:
    """Candidates of a search: its `plans`, then what is best on other clusters than the one described.

    `search.seconds` bounds the looking for them; what was found by then is the pool.
    """
    evaluator = Evaluator(search)
    found = _found(search, Watch(clock, cancelled, clock(), search.seconds))
    given = _given(evaluator, plans)
    if not len(found):
        return _pool(evaluator, given)
    chosen = found.take(_best_somewhere(evaluator, found))
    return _pool(evaluator, _first_of_each_strategy(join([given, chosen])))


def _given(evaluator: Evaluator, plans: Sequence[Mapping[str, Any]]) -> Candidates:
    """The analytical plans, in order."""
    index = {cluster.nodes: number for number, cluster in enumerate(evaluator.search.clusters)}
    scored = [evaluator.evaluate_strategies(index[plan["nodes"]], [plan["strategy"]]) for plan in plans]
    return join(scored) if scored else evaluator.evaluate_strategies(0, [])


def _found(search: SearchProblem, watch: Watch) -> Candidates:
    """What fits at even odds: for each framework, and each room that it may have, the first by time, the best of each
    family, and the front of time against memory. As the objective were that front, nothing is pruned for being slower:
    what recomputes more is the best plan where memory is short. Scored for the memory that there is."""
    frameworks = tuple(search.space.get("framework", ())) or search.frameworks or (*DEFAULT_FRAMEWORKS, "ddp")
    if search.frameworks is not None:
        frameworks = tuple(name for name in frameworks if name in search.frameworks)
    even = replace(search, memory_confidence=EVEN_ODDS)
    parts = []
    for room in LEAN_ROOMS:
        clusters = tuple(
            replace(cluster, gpu_free_memory_bytes=cluster.capacity_bytes * room) for cluster in search.clusters
        )
        evaluator = Evaluator(replace(even, objective="pareto", clusters=clusters))
        for framework in frameworks:
            swept = sweep(evaluator, (framework,), watch, lambda _: None)
            parts += [swept.best, swept.families, swept.front]
    rescored = rescore(Evaluator(even), _first_of_each_strategy(join(parts)))
    return rescored.take(rescored.acceptable)


def _first_of_each_strategy(candidates: Candidates) -> Candidates:
    table = candidates.table
    names = [name for name in table.__dataclass_fields__ if name not in ("layouts", "offload_fraction")]
    key = np.stack([candidates.cluster, *(getattr(table, name).astype(np.int64) for name in names)], axis=1)
    key = np.column_stack([key, (table.offload_fraction * 1e6).astype(np.int64)])
    _, first = np.unique(key, axis=0, return_index=True)
    return candidates.take(np.sort(first).astype(np.int64))


def _best_somewhere(evaluator: Evaluator, candidates: Candidates) -> IntColumn:
    """Rows that come in first on some cluster, those that do most often first. Requirements are those at even odds."""
    random = np.random.default_rng(evaluator.search.seed)
    price = np.array([evaluator.price(index) for index in range(len(evaluator.search.clusters))])[candidates.cluster]
    parts = _parts(evaluator, candidates) * price[:, None]
    wins = np.zeros(len(candidates), dtype=np.int64)
    for room in ROOMS:
        rows = np.flatnonzero(_leaves_room(evaluator, candidates, room))
        if len(rows):
            framework = candidates.table.framework[rows]
            for _ in range(0, WORLDS, BLOCK_WORLDS):
                factors = np.exp(random.normal(size=(len(TIME_PARTS), BLOCK_WORLDS)) * PART_DEVIATIONS[:, None])
                of_framework = np.exp(random.normal(size=(len(FRAMEWORKS), BLOCK_WORLDS)) * FRAMEWORK_DEVIATION)
                times = (parts[rows] @ factors) * of_framework[framework]
                first = np.argpartition(times, min(PLACES, len(rows) - 1), axis=0)[:PLACES]
                wins += np.bincount(rows[first.ravel()], minlength=len(candidates))
    order = np.argsort(-wins, kind="stable")
    chosen: IntColumn = order[wins[order] > 0][:MOST_CANDIDATES]
    return chosen


def _leaves_room(evaluator: Evaluator, candidates: Candidates, room: float) -> BoolColumn:
    leaves: BoolColumn = candidates.needed_bytes <= evaluator.search.capacity_bytes * room
    return leaves


def _parts(evaluator: Evaluator, candidates: Candidates) -> FloatColumn:
    """(n, TIME_PARTS) seconds, as corrected as the estimates are."""
    parts = np.empty((len(candidates), len(TIME_PARTS)))
    for cluster in np.unique(candidates.cluster).tolist():
        rows, problem = np.flatnonzero(candidates.cluster == cluster), evaluator.search.problems[cluster]
        table = candidates.table.take(rows)
        time = estimate_time(problem, table, all_stages(problem.model, table))
        parts[rows] = np.stack([time.parts[name] for name in TIME_PARTS], axis=1)
    corrected: FloatColumn = parts * (candidates.step_seconds / parts.sum(axis=1))[:, None]
    return corrected


def _pool(evaluator: Evaluator, candidates: Candidates) -> MeasuredPool:
    written = answers(evaluator, candidates)
    quantile = NormalDist().inv_cdf(max(evaluator.search.memory_confidence, 0.51))
    memories = [answer["memory"] for answer in written]
    deviations = [np.log(m["required_upper_gib"] / m["required_gib"]) / quantile for m in memories]
    return MeasuredPool(
        strategies=tuple(answer["strategy"] for answer in written),
        nodes=tuple(answer["nodes"] for answer in written),
        price=tuple(evaluator.price(index) for index in candidates.cluster.tolist()),
        parts_seconds=tuple(
            tuple(answer["time"]["breakdown_seconds"][name] for name in TIME_PARTS) for answer in written
        ),
        required_gib=tuple(memory["required_gib"] for memory in memories),
        required_deviation=tuple(max(float(deviation), LEAST_DEVIATION) for deviation in deviations),
        peaks_gib=tuple(
            (memory["peak_allocated_gib"], memory["peak_reserved_gib"], memory["peak_gib"]) for memory in memories
        ),
        capacity_gib=evaluator.search.capacity_bytes / GIB,
        memory_confidence=evaluator.search.memory_confidence,
    )
