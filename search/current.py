"""The strategy that is run today: scored, and compared with the first plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.answer import full_answers
from cost_models.estimate import estimate
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.space import allows


@dataclass(frozen=True)
class Current:
    """One row of candidates."""

    candidates: Candidates
    searched: bool
    """Inside the space that was asked for, so that it may be a plan itself."""


def score_current(evaluator: Evaluator, frameworks: Sequence[str]) -> Current | None:
    """The current strategy on the cluster size that it runs on: the first where it breaks no rule."""
    strategy = evaluator.search.current
    if strategy is None:
        return None
    scored = [evaluator.evaluate_strategies(index, [strategy]) for index in range(len(evaluator.search.clusters))]
    chosen = next((one for one in scored if one.valid[0]), scored[0])
    inside = strategy["framework"] in frameworks and bool(allows(evaluator.search.space, chosen.table)[0])
    return Current(chosen, inside)


def compare(evaluator: Evaluator, current: Current, plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Its Estimate with `nodes` and `gain`: the share of its objective that the first plan saves; null where either
    has no figures."""
    search = evaluator.search
    cluster = int(current.candidates.cluster[0])
    estimates = estimate(
        search.problems[cluster],
        current.candidates.table,
        memory_confidence=search.memory_confidence,
        corrections=search.corrections,
    )
    answer = full_answers(estimates)[0]
    gain = None
    if plans and answer["valid"]:
        own = answer["time"]["step_seconds"] * evaluator.price(cluster)
        index = next(i for i, option in enumerate(search.clusters) if option.nodes == plans[0]["nodes"])
        gain = 1 - plans[0]["time"]["step_seconds"] * evaluator.price(index) / own
    return {
        **answer,
        "nodes": search.clusters[cluster].nodes,
        "gain": gain if gain is None or np.isfinite(gain) else None,
    }
