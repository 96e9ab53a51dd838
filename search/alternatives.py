"""The nearest alternatives of a plan, one step in each direction, and what each would cost by a real estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.frameworks import framework_named
from cost_models.units import GIB
from search.candidates import Candidates
from search.evaluator import Evaluator

FOLLOWING: Final = ("data_parallel_size", "layers_per_stage")
"""Fields that follow from the others; left to their defaults in an alternative."""
CHECKPOINTING_WORDS: Final = {"none": "no", "selective": "selective", "full": "full"}


@dataclass(frozen=True)
class Alternative:
    """One step away from a plan."""

    words: str
    strategy: Mapping[str, Any]


def alternatives(strategy: Mapping[str, Any]) -> list[Alternative]:
    """One step up and down in tensor, pipeline, micro-batch, checkpointing and ZeRO; some may break a rule."""
    framework = framework_named(strategy["framework"])
    found: list[Alternative] = []
    for name, title, possible in (
        ("tensor_parallel_size", "tensor parallel", framework.tensor_parallel),
        ("pipeline_parallel_size", "pipeline parallel", bool(framework.pipeline_zero_stages)),
        ("micro_batch_size", "micro-batch", True),
    ):
        value = strategy[name]
        steps = [value // 2] * (value % 2 == 0) + [value * 2] * possible
        found += [_step(strategy, f"{title} {step} instead of {value}", {name: step}) for step in steps]
    found += [
        _step(
            strategy,
            f"{CHECKPOINTING_WORDS[mode]} activation checkpointing",
            {"activation_checkpointing": mode},
        )
        for mode in _beside(framework.activation_checkpointing, strategy["activation_checkpointing"])
    ]
    pipeline = strategy["pipeline_parallel_size"] > 1
    stages = framework.pipeline_zero_stages if pipeline else framework.zero_stages
    found += [
        _step(strategy, f"ZeRO stage {stage} instead of {strategy['zero_stage']}", {"zero_stage": stage})
        for stage in _beside(stages, strategy["zero_stage"])
    ]
    return found


def _beside(values: Sequence[Any], value: Any) -> list[Any]:
    if value not in values:
        return []
    position = values.index(value)
    return [*values[max(position - 1, 0) : position], *values[position + 1 : position + 2]]


def _step(strategy: Mapping[str, Any], words: str, changes: Mapping[str, Any]) -> Alternative:
    changed = {name: value for name, value in strategy.items() if name not in FOLLOWING} | dict(changes)
    if "activation_checkpointing" in changes:
        # What is recomputed, and of how many layers, are questions of the old mode.
        del changed["recompute_modules"], changed["checkpointed_layers"]
    if "pipeline_parallel_size" in changes:
        # The same share of a stage.
        layers = strategy["checkpointed_layers"] * strategy["pipeline_parallel_size"]
        changed["checkpointed_layers"] = math.ceil(layers / changed["pipeline_parallel_size"])
    if "tensor_parallel_size" in changes:
        # Both follow the tensor size on the frameworks that have them.
        del changed["sequence_parallel"], changed["expert_tensor_parallel_size"]
    if changes.keys() & {"tensor_parallel_size", "pipeline_parallel_size"}:
        # Another number of data ranks: one group of shards, as without an opinion.
        del changed["data_parallel_replicate_size"], changed["secondary_shard_size"]
    if changed["pipeline_parallel_size"] == 1:
        del changed["virtual_pipeline_size"], changed["pipeline_schedule"]
    return Alternative(words, changed)


def price_alternatives(evaluator: Evaluator, cluster: int, strategies: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A sentence for each valid alternative of each strategy, the cheapest first; one call of the cost models."""
    steps = [alternatives(strategy) for strategy in strategies]
    # Their defaults are not those of the plans.
    scored = Evaluator(evaluator.search).evaluate_strategies(
        cluster, [*strategies, *(step.strategy for ways in steps for step in ways)]
    )
    own, begin = scored.step_seconds, len(strategies)
    result: list[list[str]] = []
    for number, ways in enumerate(steps):
        rows = np.arange(begin, begin + len(ways))
        begin += len(ways)
        valid = rows[scored.valid[rows]]
        ordered = valid[np.argsort(scored.step_seconds[valid], kind="stable")]
        capacity_gib = evaluator.search.clusters[cluster].capacity_bytes / GIB
        result.append(
            [
                _sentence(ways[int(row - rows[0])].words, scored, int(row), float(own[number]), capacity_gib)
                for row in ordered
            ]
        )
    return result


def _sentence(words: str, scored: Candidates, row: int, own_seconds: float, capacity_gib: float) -> str:
    seconds = float(scored.step_seconds[row])
    needs = float(scored.required_upper_bytes[row]) / GIB
    fits = "fits" if scored.fits[row] else "does not fit"
    late = "" if scored.in_time[row] else ", misses the deadline"
    return (
        f"Alternative, {words}: {seconds:.3g} s a step ({(seconds / own_seconds - 1) * 100:+.1f} %), "
        f"needs up to {needs:.1f} of {capacity_gib:.1f} GiB, {fits}{late}."
    )
