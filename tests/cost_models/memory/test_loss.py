"""The loss head: what is alive while the loss is worked out and differentiated."""

from __future__ import annotations

import pytest

from cost_models.memory import estimate_memory
from cost_models.results import PEAK_MOMENTS
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, resolved

TOKENS, HIDDEN = 4096, 4096


@pytest.mark.parametrize(
    ("tensor", "vocabulary", "gathered"),
    [(1, 128256, 0.0), (2, 128256, 1.0 + 1 / 2), (4, 128512, 1.0 + 1 / 4)],
)
def test_transformer_engine_writes_the_gradient_over_the_logits(tensor: int, vocabulary: int, gathered: float) -> None:
    # 16-bit logits and gradient of the head's matrix, then the gradient of its input; with sequence parallelism its
    # input gathered again and the shard that the gradient is scattered to.
    problem = make_problem("llama-3-8b", h100(1), global_batch_size=64, fused_loss=True)
    table = resolved(
        problem,
        {"framework": "megatron-lm", "tensor_parallel_size": tensor, "activation_checkpointing": "full"},
    )
    found = estimate_memory(problem, table, all_stages(problem.model, table))
    assert PEAK_MOMENTS[found.peak_moment[0]] == "loss"
    logits, matrix, inputs = TOKENS * vocabulary / tensor, vocabulary * HIDDEN / tensor, TOKENS * HIDDEN
    assert found.parts["logits"][0] == 2 * (logits + matrix + inputs * (1 + gathered))
