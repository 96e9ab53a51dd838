"""Scores given strategies, one answer each, in order."""

from __future__ import annotations

from typing import Any

from app.schemas.estimates import EstimateRequest
from app.services.problems import MEMORY_CONFIDENCE, resolve_problem, strategy_fields
from app.services.serving_model import Served, ServingModel
from cost_models.answer import full_answers, summary_answers
from cost_models.estimate import estimate
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns


def estimate_strategies(request: EstimateRequest, serving: ServingModel) -> dict[str, Any]:
    """The contract's answer: `estimates` and `assumptions`; and the version of what was learned that corrects them."""
    base = resolve_problem(request.model, request.cluster, request.workload)
    strategies = [strategy_fields(strategy) for strategy in request.strategies]
    resolved = resolve_strategies(base.problem, partial_columns(strategies))
    confidence = MEMORY_CONFIDENCE if request.memory_confidence is None else request.memory_confidence
    served = Served(None) if request.learned is False else serving.current()
    estimates = estimate(base.problem, resolved.table, memory_confidence=confidence, corrections=served.corrections)
    answers = summary_answers(estimates) if request.detail == "summary" else full_answers(estimates)
    return {
        "estimates": answers,
        "assumptions": [*base.assumptions, *_assumed(request, served), *resolved.assumptions],
        "memory_model_version": served.version,
    }


def _assumed(request: EstimateRequest, served: Served) -> list[str]:
    assumed = []
    if request.memory_confidence is None:
        assumed.append(f"memory_confidence left out: {MEMORY_CONFIDENCE}")
    if request.detail is None:
        assumed.append("detail left out: full")
    return [*assumed, *served.assumptions(request.learned)]
