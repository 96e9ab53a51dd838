"""What the allocator keeps reserved besides what is allocated."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.memory import estimate_memory
from cost_models.results import MemoryEstimate
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, resolved

GIB = 2**30
GATHERED = 2 * (128256 + 1) * 4096
"""The buffer that final norm and head are gathered into: a pool of its own stream, which no other stream takes."""
LLAMA = make_problem("llama-3-8b", h100(1), sequence_length=8192, global_batch_size=8)


def estimated(*strategies: dict[str, Any]) -> MemoryEstimate:
    table = resolved(LLAMA, *strategies)
    return estimate_memory(LLAMA, table, all_stages(LLAMA.model, table))


def test_the_pool_of_reduced_gradients_stays_reserved_while_there_are_none() -> None:
    # fsdp2 at the loss of its only micro-batch: no gradients yet, but 8.03e9 x 4 bytes / 8 ranks are kept for them.
    found = estimated({"framework": "fsdp2", "activation_checkpointing": "selective", "compile": True})
    assert found.parts["gradients"][0] == 0
    slack = found.peak_reserved_bytes[0] - found.peak_allocated_bytes[0]
    pooled = LLAMA.model.parameters * 4 / 8 + GATHERED
    assert slack - 0.02 * found.peak_allocated_bytes[0] == pytest.approx(pooled, rel=1e-6)


def test_nothing_is_kept_beside_gradients_that_exist() -> None:
    # Two micro-batches: gradients of the first are there at the loss of the second.
    problem = make_problem("llama-3-8b", h100(1), sequence_length=8192, global_batch_size=16)
    table = resolved(problem, {"framework": "fsdp2", "activation_checkpointing": "selective", "compile": True})
    found = estimate_memory(problem, table, all_stages(problem.model, table))
    assert found.parts["gradients"][0] > 0
    slack = found.peak_reserved_bytes[0] - found.peak_allocated_bytes[0]
    assert slack == pytest.approx(0.02 * found.peak_allocated_bytes[0] + GATHERED)


def test_what_must_fit_does_not_hold_the_empty_pool() -> None:
    # The allocator gives cached blocks of any stream back before it runs out of memory.
    one, two = estimated(
        {"framework": "fsdp2", "activation_checkpointing": "full"},
        {"framework": "fsdp2", "activation_checkpointing": "full", "expandable_segments": False},
    ).required_bytes
    assert one < two
    found = estimated({"framework": "fsdp2", "activation_checkpointing": "full"})
    assert found.required_bytes[0] < found.peak_allocated_bytes[0] + 1.5 * GIB
