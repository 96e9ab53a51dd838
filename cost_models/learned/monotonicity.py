"""Whether the corrected memory still rises with the micro-batch: on a grid of strategies, each beside its next larger.

Corrections are not made monotone: measured over analytical need not rise (engines notes, section 4.3: forcing it costs
accuracy on real runs). They follow the micro-batch through the shares of the parts only, over lengths at which they
change less than the peak itself does. Here that is checked on the clusters that logged runs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from cost_models.learned.corrections import LearnedCorrections
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.run_records import record_problem
from cost_models.stages import all_stages
from cost_models.strategy import FRAMEWORKS, partial_columns

MICRO_BATCHES: Final = (1, 2, 4, 8, 16)
MOST_CLUSTERS: Final = 8
_PROBE: Final = {
    "model": {"preset": "llama-3-8b"},
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "workload": {"sequence_length": 4096, "global_batch_size": 4096},
}
_GRID: Final = tuple(product((1, 2, 8), (1, 4), (0, 1, 3), ("none", "selective", "full")))


def monotonicity(model: LearnedCorrections) -> dict[str, Any]:
    """Steps to twice the micro-batch on the grid, those at which what is required falls, and the deepest fall."""
    problem = record_problem(_PROBE)
    groups = sorted(model.peak_memory.on_cluster)[:MOST_CLUSTERS]
    steps = [_steps(model, problem, framework, model.peak_memory.clusters[cluster]) for framework, cluster in groups]
    together = np.concatenate(steps) if steps else np.empty(0)
    return {
        "steps": len(together),
        "falls": int((together < 0.0).sum()),
        "deepest_fall": float(-np.expm1(together.min(initial=0.0))),
    }


def _steps(model: LearnedCorrections, problem: Problem, framework: int, identity: str) -> np.ndarray[Any, Any]:
    """Logarithms of what is required at twice the micro-batch over what is required, where both are valid."""
    named = replace(problem, cluster=replace(problem.cluster, name=identity))
    strategies = [
        {
            "framework": FRAMEWORKS[framework],
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": pipeline,
            "zero_stage": zero_stage,
            "activation_checkpointing": checkpointing,
            "micro_batch_size": micro_batch,
        }
        for tensor, pipeline, zero_stage, checkpointing in _GRID
        for micro_batch in MICRO_BATCHES
    ]
    table = resolve_strategies(named, partial_columns(strategies)).table
    valid = violations(named, table) == 0
    required = np.full(len(table), np.nan)
    if valid.any():
        kept = table.take(valid)
        memory = estimate_memory(named, kept, all_stages(named.model, kept))
        required[valid] = np.log(model.memory(named, kept, memory).apply(memory).most_required_bytes)
    steps = np.diff(required.reshape(-1, len(MICRO_BATCHES)), axis=1).reshape(-1)
    return steps[~np.isnan(steps)]
