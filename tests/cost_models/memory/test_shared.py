"""Distinct strategies, and the way back to all of them."""

from __future__ import annotations

import numpy as np

from cost_models.memory.shared import share
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, megatron, resolved


def test_stages_of_equal_strategies_are_shared() -> None:
    problem = make_problem("llama-3-8b", h100(2))
    strategies = [megatron(1, pipeline, micro_batch_size=size) for pipeline in (4, 1, 2) for size in (1, 2)]
    table = resolved(problem, *strategies)
    stages = all_stages(problem.model, table)
    shared = share(table, stages, ("pipeline_parallel_size", "layers_per_stage"))
    assert len(shared.table) == 3
    assert len(shared.stages) == 4 + 1 + 2
    np.testing.assert_array_equal(shared.stages.stage[shared.rows], stages.stage)
    np.testing.assert_array_equal(shared.stages.layers[shared.rows], stages.layers)
    np.testing.assert_array_equal(
        shared.on_strategies(shared.table.pipeline_parallel_size), table.pipeline_parallel_size
    )
