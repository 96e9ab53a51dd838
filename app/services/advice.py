"""Advice on a running job from its observed memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.schemas.advice import MemorySample, MicroBatchRequest
from app.services.problems import MEMORY_CONFIDENCE, resolve_problem, strategy_fields
from app.services.serving_model import ServingModel
from cost_models.answer import DECIMALS
from cost_models.errors import InvalidInput
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import explain_violations, violations
from cost_models.strategy import StrategyTable, partial_columns
from cost_models.units import GIB, SECONDS_PER_HOUR
from search.advice_steps import Step
from search.micro_batch_advice import Advice, advise
from search.observed_memory import Observation, Sample, read_curve

FULLEST = "the observed memory is taken to be that of the fullest GPU, peaks as torch counts them"


class StrategyInvalid(Exception):
    """The strategy breaks rules. `errors`: one for each."""

    def __init__(self, errors: list[InvalidInput]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


def advise_micro_batch(request: MicroBatchRequest, serving: ServingModel) -> dict[str, Any]:
    """The contract's answer; raises InvalidInput or StrategyInvalid."""
    base = resolve_problem(request.model, request.cluster, request.workload)
    resolved = resolve_strategies(base.problem, partial_columns([strategy_fields(request.strategy)]))
    _check(base.problem, resolved.table)
    observation = read_curve([_sample(sample) for sample in request.observed], base.problem)
    served = serving.current()
    advice = advise(
        base.problem,
        resolved.table,
        observation,
        memory_confidence=request.memory_confidence or MEMORY_CONFIDENCE,
        corrections=served.corrections,
    )
    confidence = [] if request.memory_confidence else [f"memory_confidence left out: {MEMORY_CONFIDENCE}"]
    return {
        "strategy": advice.strategy,
        "micro_batch_size": advice.strategy["micro_batch_size"],
        "throughput_gain": round(advice.throughput_gain, DECIMALS),
        "estimate": advice.estimate,
        "steps": [_step(step) for step in advice.steps],
        "current": advice.current,
        "observed": _observed(observation, advice),
        "assumptions": [*base.assumptions, *confidence, FULLEST, served.sentence, *resolved.assumptions],
        "memory_model_version": served.version,
    }


def _check(problem: Problem, table: StrategyTable) -> None:
    mask = int(violations(problem, table)[0])
    if mask:
        broken = explain_violations(problem, table, 0, mask)
        raise StrategyInvalid([InvalidInput(("strategy",), code, message) for code, message in broken])


def _sample(sample: MemorySample) -> Sample:
    def read(gib: float | None) -> float | None:
        return None if gib is None else gib * GIB

    return Sample(sample.seconds, read(sample.allocated_gib), read(sample.reserved_gib), read(sample.device_gib))


def _step(step: Step) -> dict[str, Any]:
    saved, seconds = step.saved_bytes, step.step_seconds_change
    return {
        "code": step.code,
        "message": step.message,
        "field": step.field,
        "from": step.before,
        "to": step.after,
        "saved_gib": None if saved is None else round(saved / GIB, DECIMALS),
        "step_seconds_change": None if seconds is None else round(seconds, DECIMALS),
    }


def _observed(observation: Observation, advice: Advice) -> dict[str, Any]:
    def shown(size: float | None) -> float | None:
        return None if size is None else round(size / GIB, DECIMALS)

    return {
        "peak_allocated_gib": shown(observation.allocated),
        "peak_reserved_gib": shown(observation.reserved),
        "peak_device_gib": shown(observation.device),
        "required_ratio": float(np.round(advice.corrections.required, DECIMALS)),
        "growth_gib_per_hour": round(observation.growth_bytes_per_s * SECONDS_PER_HOUR / GIB, DECIMALS),
    }
