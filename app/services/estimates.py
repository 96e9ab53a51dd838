"""Scores given strategies, one answer each, in order."""

from __future__ import annotations

from typing import Any

from app.schemas.estimates import EstimateRequest
from app.services.problems import MEMORY_CONFIDENCE, resolve_problem, strategy_fields
from cost_models.answer import full_answers, summary_answers
from cost_models.estimate import estimate
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns


def estimate_strategies(request: EstimateRequest) -> dict[str, Any]:
    """The contract's answer: `estimates` and `assumptions`."""
    base = resolve_problem(request.model, request.cluster, request.workload)
    strategies = [strategy_fields(strategy) for strategy in request.strategies]
    resolved = resolve_strategies(base.problem, partial_columns(strategies))
    confidence = MEMORY_CONFIDENCE if request.memory_confidence is None else request.memory_confidence
    estimates = estimate(base.problem, resolved.table, memory_confidence=confidence)
    answers = summary_answers(estimates) if request.detail == "summary" else full_answers(estimates)
    return {"estimates": answers, "assumptions": [*base.assumptions, *_assumed(request), *resolved.assumptions]}


def _assumed(request: EstimateRequest) -> list[str]:
    assumed = []
    if request.memory_confidence is None:
        assumed.append(f"memory_confidence left out: {MEMORY_CONFIDENCE}")
    if request.detail is None:
        assumed.append("detail left out: full")
    if request.learned is not False:
        how = "left out: true" if request.learned is None else "true"
        assumed.append(f"learned {how}; there is no learned memory model yet, so that no correction is applied")
    return assumed
