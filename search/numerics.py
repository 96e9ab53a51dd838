"""What other numerics would change of a plan that memory binds: less to keep, and room for what then fits.

They are no part of the search, which keeps the numerics that were asked for: what they do to the training is for the
user to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cost_models.frameworks import framework_named
from cost_models.units import GIB
from search.alternatives import Alternative, Priced, price_row
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.space import allows

MOST_STEPS: Final = 3
"""Steps that are faster and do not fit, tried with each change: the fastest of them."""


@dataclass(frozen=True)
class _Numerics:
    words: str
    fields: Mapping[str, Any]
    """Of the strategy."""


def numerics(evaluator: Evaluator, cluster: int, plan: Mapping[str, Any], nearby: Sequence[Priced]) -> list[Priced]:
    """Each change alone, and with the fastest step away from the plan that does not fit now and then does; only where
    it breaks no rule and needs less memory. `nearby`: the plan's alternatives."""
    search, workload = evaluator.search, evaluator.search.workload
    found = _priced(search, cluster, plan, nearby, _in_strategy(search, plan["strategy"]))
    if workload.optimizer in ("adamw", "adam") and workload.fine_tuning is None:
        eight_bit = replace(search, workload=replace(workload, optimizer="adamw-8bit"))
        found += _priced(eight_bit, cluster, plan, nearby, [_Numerics("an 8-bit optimizer (adamw-8bit)", {})])
    return found


def _in_strategy(search: SearchProblem, own: Mapping[str, Any]) -> list[_Numerics]:
    found = []
    if own["gradient_dtype"] == "fp32" and own["precision"] in ("bf16", "fp8", "nvfp4"):
        found.append(_Numerics("gradients in bf16", {"gradient_dtype": "bf16"}))
    writes = own["zero_stage"] in framework_named(own["framework"]).requantised_zero_stages
    if own["precision"] == "bf16" and writes and search.clusters[0].gpu.supports("fp8"):
        fields = {"precision": "fp8", "parameter_dtype": "fp8", "fp8_recipe": None}
        found.append(_Numerics("precision fp8 with weights in 8 bit", fields))
    return found


def _priced(
    search: SearchProblem,
    cluster: int,
    plan: Mapping[str, Any],
    nearby: Sequence[Priced],
    changes: Sequence[_Numerics],
) -> list[Priced]:
    ways = [way for change in changes for way in _ways(change, plan["strategy"], nearby)]
    if not ways:
        return []
    scored = Evaluator(search).evaluate_strategies(cluster, [way.strategy for way in ways])
    capacity_gib, seconds = search.clusters[cluster].capacity_bytes / GIB, plan["time"]["step_seconds"]
    inside = allows(search.space, scored.table).tolist()
    priced = [
        replace(price_row(way, scored, row, seconds, capacity_gib), changes_numerics=True, in_space=inside[row])
        for row, way in enumerate(ways)
    ]
    size = len(ways) // len(changes)
    found: list[Priced] = []
    for begin in range(0, len(ways), size):
        alone, *others = priced[begin : begin + size]
        if alone.figures is None or alone.figures.required_upper_gib >= plan["memory"]["required_upper_gib"]:
            continue
        room = [(one.figures.step_seconds, one) for one in others if one.figures and one.figures.fits]
        found += [alone, *(one for _, one in sorted(room, key=lambda pair: pair[0])[:1])]
    return found


def _ways(change: _Numerics, own: Mapping[str, Any], nearby: Sequence[Priced]) -> list[Alternative]:
    blocked = [
        one for one in nearby if one.figures and one.in_space and not one.figures.fits and one.figures.relative < 0
    ]
    return [
        Alternative(change.words, tuple(change.fields), {**own, **change.fields}),
        *(
            Alternative(
                f"{change.words} and {one.alternative.words}",
                (*change.fields, *one.alternative.fields),
                {**one.strategy, **change.fields},
            )
            for one in blocked[:MOST_STEPS]
        ),
    ]
