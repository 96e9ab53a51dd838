"""The strategy that is run today: scored, and compared with the first plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.answer import full_answers
from cost_models.estimate import estimate
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.space import allows

DECIMALS: Final = 9
"""Of seconds that are written out, as in `cost_models.answer`."""


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
    """Its Estimate with `nodes` and, against the first plan: `gain`, the share of its objective that is saved;
    `saved_seconds`, of each part of the step (negative: the plan spends more); `changes`, the fields that differ. Null
    where either has no figures."""
    search = evaluator.search
    cluster = int(current.candidates.cluster[0])
    estimates = estimate(
        search.problems[cluster],
        current.candidates.table,
        memory_confidence=search.memory_confidence,
        corrections=search.corrections,
    )
    answer = full_answers(estimates)[0]
    gain, saved, changes = None, None, None
    if plans and answer["valid"]:
        before, after = answer["time"]["breakdown_seconds"], plans[0]["time"]["breakdown_seconds"]
        saved = {part: round(before[part] - after[part], DECIMALS) for part in before}
        new = plans[0]["strategy"]
        changes = {
            name: {"from": value, "to": new[name]} for name, value in answer["strategy"].items() if value != new[name]
        }
        own = answer["time"]["step_seconds"] * evaluator.price(cluster)
        index = next(i for i, option in enumerate(search.clusters) if option.nodes == plans[0]["nodes"])
        gain = 1 - plans[0]["time"]["step_seconds"] * evaluator.price(index) / own
    return {
        **answer,
        "nodes": search.clusters[cluster].nodes,
        "gain": gain if gain is None or np.isfinite(gain) else None,
        "saved_seconds": saved,
        "changes": changes,
    }
