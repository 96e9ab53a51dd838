"""From scored candidates to plans: rescored on every stage, in order of the objective, and really different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from cost_models.strategy import IntColumn
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.explain import Explanation
from search.swept import front_of

RESCORED_ROWS: Final = 512
"""Candidates rescored at a time while the ranking walks down the shortlist."""
KIND: Final = ("framework", "tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")
"""Fields that tell one kind of plan from another. Context parallelism does not: doubled together with the micro-batch
it gives the same work to every GPU, so such plans would fill the list with one idea."""
PLAN_FIELDS: Final = (
    *KIND,
    "context_parallel_size",
    "virtual_pipeline_size",
    "data_parallel_replicate_size",
    "expert_tensor_parallel_size",
    "zero_stage",
    "micro_batch_size",
    "activation_checkpointing",
    "offload",
    "precision",
)
"""Two plans differ in at least one of these: a layer more or less recomputed is a variant, not another plan."""


def rescore(evaluator: Evaluator, candidates: Candidates) -> Candidates:
    """The same candidates in the same order, scored on all of their stages."""
    clusters = np.unique(candidates.cluster).tolist()
    if not clusters:
        return candidates
    rows = [np.flatnonzero(candidates.cluster == cluster) for cluster in clusters]
    parts = [
        evaluator.evaluate(cluster, candidates.table.take(chosen))
        for cluster, chosen in zip(clusters, rows, strict=True)
    ]
    return join(parts).take(np.argsort(np.concatenate(rows), kind="stable"))


def rank(evaluator: Evaluator, pool: Candidates, count: int, *, tight: bool = False) -> Candidates:
    """The best plans (or tight ones) of the pool.

    The sweep's figures hold for all stages, so the walk can end where the next candidate is no better than the last
    plan.
    """
    pool = pool.take(pool.order())
    rescored: list[Candidates] = []
    chosen = pool.take(slice(0, 0))
    for begin in range(0, len(pool), RESCORED_ROWS):
        if len(chosen) == count and pool.objective[begin] >= chosen.objective[-1]:
            break
        block = rescore(evaluator, pool.take(slice(begin, begin + RESCORED_ROWS)))
        rescored.append(block.take(block.tight if tight else block.acceptable))
        chosen = select(join(rescored), count)
    return chosen


def select(candidates: Candidates, count: int) -> Candidates:
    """`count` plans that differ in a field that matters: the best of each kind, then the best of what is left."""
    ordered = candidates.take(candidates.order())
    different = ordered.first_of_each(PLAN_FIELDS)
    of_a_kind = different[ordered.take(different).first_of_each(KIND)]
    others = np.setdiff1d(different, of_a_kind)
    rows: IntColumn = np.concatenate([of_a_kind[:count], others[: max(0, count - len(of_a_kind))]])
    return ordered.take(np.sort(rows))


def rank_front(evaluator: Evaluator, pool: Candidates, count: int) -> Candidates:
    """Plans along the front of step time against peak memory, fastest first, evenly spread where it is long."""
    # Peaks of a sweep are those of the formulas (`judgement.judge_sparingly`), those of a study are corrected.
    rescored = rescore(evaluator, front_of(pool) if evaluator.search.corrections is None else pool)
    front = front_of(rescored.take(rescored.acceptable))
    points = front.take(np.sort(front.first_of_each(PLAN_FIELDS)))
    rows = np.unique(np.linspace(0, len(points) - 1, min(count, len(points))).round().astype(np.int64))
    return points.take(rows)


def answers(evaluator: Evaluator, candidates: Candidates) -> list[dict[str, Any]]:
    """The contract's Estimate of every candidate, in order, with `rank` and `nodes`."""
    written: dict[int, dict[str, Any]] = {}
    for cluster in np.unique(candidates.cluster).tolist():
        rows = np.flatnonzero(candidates.cluster == cluster)
        estimates = evaluator.answers(cluster, candidates.table.take(rows))
        written.update(zip(rows.tolist(), estimates, strict=True))
    nodes = [evaluator.search.clusters[index].nodes for index in candidates.cluster.tolist()]
    return [{"rank": row + 1, "nodes": nodes[row], **written[row]} for row in range(len(candidates))]


def with_explanations(
    plans: Sequence[Mapping[str, Any]], explanations: Sequence[Explanation]
) -> tuple[Mapping[str, Any], ...]:
    """Plans, each with what explains it."""
    return tuple({**plan, **one.as_dict()} for plan, one in zip(plans, explanations, strict=True))
