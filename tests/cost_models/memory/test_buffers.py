"""Buckets of gradients, and gradients that live in buffers."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, resolved

LLAMA = make_problem("llama-3-8b", h100(1), global_batch_size=8)
SHORT = make_problem("llama-3-8b", h100(8), sequence_length=256, global_batch_size=64)
"""The peak is in backward, where buckets are filled."""
BUCKET_BYTES = 5e8 * 2
"""DeepSpeed's reduce_bucket_size in bf16."""


def parts(problem: Problem = LLAMA, **fields: Any) -> dict[str, float]:
    """Bytes of the only stage at its peak."""
    table = resolved(
        problem, {"framework": "deepspeed", "activation_checkpointing": "full", "kernels": "fused", **fields}
    )
    found = estimate_memory(problem, table, all_stages(problem.model, table))
    return {name: float(column[0]) for name, column in found.parts.items()}


@pytest.mark.parametrize(("zero_stage", "more"), [(1, 1), (2, 1), (3, 0)])
def test_a_second_bucket_overlaps_except_under_zero_3(zero_stage: int, more: int) -> None:
    overlapping, plain = (parts(SHORT, zero_stage=zero_stage, overlap_communication=value) for value in (True, False))
    difference = overlapping["communication_buffers"] - plain["communication_buffers"]
    assert difference == pytest.approx(more * BUCKET_BYTES)


def test_zero_3_holds_its_share_of_the_gradients_at_any_time() -> None:
    # stage3.py makes grad_partitions_flat_buffer once; stage 2 makes its gradients anew in every backward.
    share = 2 * LLAMA.model.parameters / 8
    assert parts(zero_stage=3)["gradients"] == pytest.approx(share)


@pytest.mark.parametrize(("framework", "buffers"), [("nanotron", 2), ("megatron-lm", 0)])
def test_nanotron_gathers_into_two_buffers_that_stay(framework: str, buffers: int) -> None:
    # One for the inputs of column-parallel matrices, one for the gradients of row-parallel ones: whole activations.
    fields = {"framework": framework, "tensor_parallel_size": 8, "zero_stage": 0}
    one, two = (parts(**fields, micro_batch_size=size)["communication_buffers"] for size in (1, 2))
    assert two - one == pytest.approx(buffers * 2 * 4096 * 4096)
