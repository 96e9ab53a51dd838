"""What lies outside of the allocator: the CUDA context and NCCL's connections."""

from __future__ import annotations

import pytest

from cost_models.memory import estimate_memory
from cost_models.memory.overhead import communicator_bytes
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, megatron, resolved

MIB = 2**20


@pytest.mark.parametrize(
    ("fields", "rings", "peers"),
    [
        ({"tensor_parallel_size": 1}, 1, 0),
        ({"tensor_parallel_size": 8}, 2, 0),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "context_parallel_size": 2}, 4, 0),
        ({"expert_parallel_size": 2}, 2, 1),
        ({"expert_parallel_size": 8}, 2, 7),
        # Peers on other nodes share what the network needs.
        ({"expert_parallel_size": 16}, 2, 7),
    ],
)
def test_a_group_has_a_ring_of_24_channels_and_experts_32_to_each_peer(
    fields: dict[str, int], rings: int, peers: int
) -> None:
    problem = make_problem("qwen3-30b-a3b", h100(2), global_batch_size=256)
    table = resolved(problem, {"framework": "megatron-lm", "zero_stage": 1, **fields})
    assert communicator_bytes(table).tolist() == [12 * MIB * (24 * rings + 32 * peers)]


def test_the_device_shows_context_and_communicators_besides() -> None:
    problem = make_problem("llama-3-8b", h100(2), global_batch_size=256)
    table = resolved(problem, megatron(8, 1))
    found = estimate_memory(problem, table, all_stages(problem.model, table))
    assert found.peak_bytes[0] - found.peak_reserved_bytes[0] == pytest.approx((484 + 2 * 24 * 12) * MIB)
