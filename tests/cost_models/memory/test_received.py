"""Tensors on their way between pipeline stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.memory import estimate_memory
from cost_models.memory.in_flight import in_flight
from cost_models.memory.received import received_bytes
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, resolved

TOKENS, HIDDEN = 4096, 4096


def buffers(**strategy: Any) -> list[float]:
    problem = make_problem("llama-3-8b", h100(1), global_batch_size=32)
    table = resolved(problem, {"pipeline_parallel_size": 4, **strategy})
    parts = estimate_memory(problem, table, all_stages(problem.model, table)).parts
    counts: list[float] = (parts["communication_buffers"] / (2 * TOKENS * HIDDEN)).tolist()
    return counts


def test_a_stage_of_megatron_still_names_the_gradient_it_sent() -> None:
    found = buffers(framework="megatron-lm", zero_stage=1)
    assert [each - found[0] for each in found] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        # 16 micro-batches; 4, 3, 2, 1 of them in flight: a buffer of each finished one that was received, and one for
        # the gradient of each that was sent.
        ({}, [16, 13 + 16, 14 + 16, 15]),
        ({"pipeline_schedule": "gpipe"}, [16, 16, 16, 0]),
    ],
)
def test_stages_of_torch_have_buffers_of_every_micro_batch(fields: dict[str, str], kept: list[int]) -> None:
    problem = make_problem("llama-3-8b", h100(1), global_batch_size=32)
    strategy = {"framework": "fsdp2", "pipeline_parallel_size": 4, "data_parallel_replicate_size": 2, **fields}
    table = resolved(problem, strategy)
    stages = all_stages(problem.model, table)
    found = received_bytes(problem, table, stages, in_flight(problem, table, stages), np.ones(1))
    # The first stage sends no gradients; the others keep that of one micro-batch until it is sent.
    assert (found - [0, 1, 1, 1]).tolist() == kept
