"""Warnings that follow from a layout alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from cost_models.codes import WARNINGS
from cost_models.explicit_architecture import build_architecture
from cost_models.problem import Problem
from cost_models.rules import explain_warnings, placement_warnings
from tests.cost_models.problems import h100, make_problem, megatron, resolved

LLAMA: Final = make_problem("llama-3-70b", h100(8))
ODD_WIDTH: Final = build_architecture(
    {
        "layers": 32,
        "hidden_size": 4096,
        "attention_heads": 32,
        "key_value_heads": 32,
        "ffn_hidden_size": 11_000,
        "gated_mlp": True,
        "vocab_size": 32_000,
        "tied_embeddings": False,
    }
)


def warned(problem: Problem, strategy: dict[str, Any]) -> dict[str, str]:
    table = resolved(problem, strategy)
    return dict(explain_warnings(problem, table, 0, int(placement_warnings(problem, table)[0])))


WARNED: Final[list[tuple[Problem, dict[str, Any], str, str]]] = [
    (
        make_problem("gpt-3-175b", h100(8)),
        megatron(16, 1),
        "tensor_parallel_crosses_nodes",
        "groups of tensor_parallel_size 16 reach beyond the 8 GPUs that share a fast link: every layer "
        "waits for the network",
    ),
    (
        make_problem("deepseek-v3", h100(8)),
        megatron(1, 1, expert_parallel_size=64),
        "expert_parallel_crosses_domain",
        "expert_parallel_size 64 x expert_tensor_parallel_size 1 reaches beyond the 8 GPUs that share a fast link: "
        "tokens travel to experts over a slower one, 7.0 copies of each in an all-to-all, which is "
        "priced; 3.2 copies of each, one to a domain (DeepEP, HybridEP)",
    ),
    (
        make_problem(
            "deepseek-v3",
            {
                "nodes": 8,
                "gpus_per_node": 8,
                "gpu": "h100-sxm5-80gb",
                "inter_node": {"kind": "infiniband", "expert_dispatch": "hierarchical"},
            },
        ),
        megatron(1, 1, expert_parallel_size=64),
        "expert_parallel_crosses_domain",
        "expert_parallel_size 64 x expert_tensor_parallel_size 1 reaches beyond the 8 GPUs that share a fast link: "
        "tokens travel to experts over a slower one, 3.2 copies of each, one to a domain (DeepEP, HybridEP), which is "
        "priced; 7.0 copies of each in an all-to-all",
    ),
    (
        make_problem(
            "qwen3-30b-a3b", {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "nvlink_domain_gpus": 4}
        ),
        megatron(1, 1, expert_parallel_size=8),
        "expert_parallel_crosses_domain",
        "expert_parallel_size 8 x expert_tensor_parallel_size 1 reaches beyond the 4 GPUs that share a fast link: "
        "tokens travel to experts over a slower one, 4.0 copies of each in an all-to-all, which is "
        "priced; 1.0 copies of each, one to a domain (DeepEP, HybridEP)",
    ),
    (
        make_problem(
            "llama-3-8b",
            {
                "nodes": 2,
                "gpus_per_node": 8,
                "gpu": "rtx-4090-24gb",
                "inter_node": {"kind": "ethernet", "gbps_per_gpu": 1.25},
            },
        ),
        {"framework": "fsdp2"},
        "slow_link",
        "the network gives a GPU 1 Gb/s; clusters for training have at least 50",
    ),
    (
        make_problem("llama-3-8b", {"nodes": 1, "gpus_per_node": 8, "gpu": "rtx-4090-24gb"}),
        {"framework": "fsdp2"},
        "peer_to_peer_missing",
        "rtx-4090-24gb has no peer-to-peer access: traffic inside a node goes through host memory, 4 cards by one path",
    ),
    (
        make_problem("llama-3-8b", {"nodes": 1, "gpus_per_node": 2, "gpu": "rtx-4090-24gb"}),
        {"framework": "fsdp2"},
        "peer_to_peer_missing",
        "rtx-4090-24gb has no peer-to-peer access: traffic inside a node goes through host memory",
    ),
    (
        make_problem("vit-h", h100(1), sequence_length=257),
        {"framework": "fsdp2"},
        "odd_head_dimension",
        "head_dim 80 has no flash attention kernel of its own and runs padded to 96",
    ),
    (
        make_problem("bert-large", h100(1), sequence_length=512),
        {"framework": "fsdp2", "precision": "fp8"},
        "fp8_without_gain",
        "matrices 1024 wide on a rank are too narrow for fp8: casts and scales eat the gain",
    ),
    (
        replace(LLAMA, model=ODD_WIDTH),
        megatron(8, 1, precision="fp8"),
        "fp8_without_gain",
        "matrices 1375 wide on a rank are no multiple of 16: those layers do not run in fp8",
    ),
    (
        make_problem("llama-2-13b", h100(1)),
        {"framework": "megatron-lm", "zero_stage": 1},
        "weights_replicated",
        "each of 8 data-parallel ranks keeps all its weights (24.2 GiB, 31% of the GPU): zero_stage 3 would shard them",
    ),
    (
        LLAMA,
        megatron(8, 1),
        "vocabulary_padded",
        "vocabulary 128256 is padded to 129024, a multiple of 1024",
    ),
    (
        make_problem("llama-3-70b", h100(8), global_batch_size=16),
        megatron(4, 4, virtual_pipeline_size=2),
        "few_micro_batches",
        "4 micro-batches x 2 chunks for 4 stages leave a large bubble; 16 would keep it small",
    ),
    (
        LLAMA,
        megatron(4, 4, layers_per_stage=[26, 18, 18, 18]),
        "stages_imbalanced",
        "the busiest stage has 28% more to do than the mean (the head counts as 1.2 layers)",
    ),
    (
        make_problem("llama-3-70b", h100(32)),
        {"framework": "fsdp2"},
        "flat_all_reduce_across_nodes",
        "gradients are reduced in one step over 32 nodes: data_parallel_replicate_size > 1 would reduce them inside "
        "groups of nodes first",
    ),
]


@pytest.mark.parametrize(("problem", "strategy", "code", "message"), WARNED)
def test_a_warning_says_its_numbers(problem: Problem, strategy: dict[str, Any], code: str, message: str) -> None:
    assert warned(problem, strategy).get(code) == message


def test_the_warnings_are_those_of_the_contract() -> None:
    assert {code for _, _, code, _ in WARNED} <= set(WARNINGS)


def test_a_sound_strategy_has_no_warning() -> None:
    problem = make_problem("llama-3-70b", h100(8), sequence_length=8192, global_batch_size=128)
    assert warned(problem, {"framework": "fsdp2", "tensor_parallel_size": 8}) == {}


@pytest.mark.parametrize(("tensor", "crosses"), [(4, False), (8, False), (3, True), (16, True)])
def test_tensor_groups_stay_inside_a_node_where_they_divide_it(tensor: int, crosses: bool) -> None:
    problem = make_problem("gpt-3-175b", {"nodes": 6, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"})
    strategy = megatron(tensor, 1)
    assert ("tensor_parallel_crosses_nodes" in warned(problem, strategy)) is crosses


def test_tensor_groups_may_span_the_trays_of_a_rack() -> None:
    problem = make_problem("gpt-3-175b", {"preset": "gb200-nvl72", "nodes": 16})
    assert "tensor_parallel_crosses_nodes" not in warned(problem, megatron(16, 1))
