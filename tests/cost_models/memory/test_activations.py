"""Saved activations against arXiv 2205.05198, operator by operator, and against what other kernels keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.memory.recomputation import layer_activations
from cost_models.problem import Problem
from cost_models.workload import Workload
from tests.cost_models.problems import h100, make_problem, megatron, resolved

HEADS, HIDDEN, SEQUENCE, BATCH = 96, 12288, 2048, 1
SBH = SEQUENCE * BATCH * HIDDEN
STATISTICS = 2 * 2 * 4 * SEQUENCE * BATCH
"""fp32 mean and variance of the tokens of two norms, which the paper leaves out (section 4.1)."""
SCORES = 5 * HEADS * SEQUENCE / HIDDEN


def gpt(heads: int = HEADS, hidden: int = HIDDEN, **workload: Any) -> Problem:
    """A GPT block of the paper: plain perceptron of 4 h, learned positions, dropout, attention without flash."""
    model = build_architecture(
        {
            "layers": 8,
            "hidden_size": hidden,
            "attention_heads": heads,
            "key_value_heads": heads,
            "ffn_hidden_size": 4 * hidden,
            "gated_mlp": False,
            "vocab_size": 51200,
            "tied_embeddings": True,
            "position_embeddings": "learned",
        },
        sequence_length=SEQUENCE,
    )
    fields = {"sequence_length": SEQUENCE, "global_batch_size": 64, "attention": "eager", "dropout": 0.1, **workload}
    return Problem(model, make_problem("gpt-2-xl", h100(1)).cluster, Workload(**fields))


def layer(problem: Problem, **strategy: Any) -> tuple[float, float]:
    """Bytes that one layer saves, and those that it keeps when it is checkpointed."""
    found = layer_activations(problem, resolved(problem, {"framework": "megatron-lm", **strategy}))
    return float(found.saved[0, 0]), float(found.kept[0, 0])


def test_a_layer_without_parallelism_saves_equation_1() -> None:
    assert layer(gpt())[0] == pytest.approx(SBH * (34 + SCORES) + STATISTICS, rel=1e-12)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_parallelism_saves_equation_2(tensor: int) -> None:
    saved, _ = layer(gpt(), tensor_parallel_size=tensor, sequence_parallel=False)
    assert saved == pytest.approx(SBH * (10 + 24 / tensor + SCORES / tensor) + STATISTICS, rel=1e-12)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_sequence_parallelism_divides_all_of_it(tensor: int) -> None:
    saved, _ = layer(gpt(), tensor_parallel_size=tensor, sequence_parallel=True)
    assert saved == pytest.approx((SBH * (34 + SCORES) + STATISTICS) / tensor, rel=1e-12)


def test_recomputing_the_attention_core_drops_the_quadratic_term() -> None:
    saved, kept = layer(gpt(), tensor_parallel_size=8, activation_checkpointing="selective")
    assert kept == pytest.approx((SBH * 34 + STATISTICS) / 8, rel=1e-12)
    # Section 5: saves 70 % of the activations of GPT-3.
    assert 1 - kept / saved == pytest.approx(0.70, abs=0.005)


def test_the_share_saved_for_mt_nlg_530b_is_the_published_one() -> None:
    saved, kept = layer(gpt(128, 20480), tensor_parallel_size=8, activation_checkpointing="selective")
    assert 1 - kept / saved == pytest.approx(0.65, abs=0.005)


def test_full_recomputation_keeps_the_input_of_a_layer() -> None:
    assert layer(gpt(), activation_checkpointing="full")[1] == 2 * SBH


def test_without_dropout_masks_and_dropped_scores_go() -> None:
    assert layer(gpt(dropout=0.0))[0] == pytest.approx(SBH * (32 + 0.4 * SCORES) + STATISTICS, rel=1e-12)


def test_flash_attention_keeps_one_number_a_head_instead_of_scores() -> None:
    saved, _ = layer(gpt(attention="flash", dropout=0.0))
    assert saved == SBH * 32 + 4 * HEADS * SEQUENCE + STATISTICS


def test_plain_kernels_keep_more_than_partly_fused_ones_and_those_more_than_fused_ones() -> None:
    problem = make_problem("llama-3-8b", h100(1))
    saved = [layer(problem, kernels=kernels)[0] for kernels in ("fused", "partly-fused", "eager")]
    tokens, hidden, width = 4096, 4096, 14336
    kv = 1024
    attention = 2 * (2 * hidden + 2 * kv) + 4 * 32 + 2 * 4
    assert saved[0] == tokens * (8 * hidden + attention + 6 * width)
    assert saved[1] == tokens * (8 * hidden + attention + 8 * width)
    # un-fused RMSNorm: an fp32 copy of its input and the normalised input, then its output
    assert saved[2] == tokens * (2 * (4 + 2 + 2) * hidden + attention + 8 * width)


def test_torch_tensor_parallelism_keeps_gathered_norm_outputs() -> None:
    problem = make_problem("llama-3-8b", h100(1))
    fields = {"tensor_parallel_size": 4, "kernels": "fused"}
    difference = layer(problem, framework="fsdp2", **fields)[0] - layer(problem, **fields)[0]
    assert difference == 2 * 2 * 4096 * 4096 * (1 - 1 / 4)


def test_compiled_blocks_keep_no_product_that_backward_does_not_read() -> None:
    # Traced with torch 2.13 (AOTAutograd's min-cut partitioner, torchtitan's policy): input, q, v, gate, the output
    # of attention and its log-sum-exp; without compilation the product of down as well.
    problem = make_problem("llama-3-8b", h100(1))
    fields = {"framework": "fsdp2", "activation_checkpointing": "selective"}
    eager, compiled = (layer(problem, compile=value, **fields)[1] for value in (False, True))
    tokens, hidden = 4096, 4096
    assert compiled == tokens * (2 * (3 * hidden + 1024 + 14336) + 4 * 32)
    assert eager - compiled == tokens * 2 * hidden


def test_context_parallelism_divides_tokens() -> None:
    problem = make_problem("llama-3-8b", h100(1))
    assert layer(problem, context_parallel_size=4)[0] == layer(problem)[0] / 4


def test_an_imbalanced_router_fills_the_hottest_rank() -> None:
    even, hot = (make_problem("mixtral-8x7b", h100(1), expert_imbalance=factor) for factor in (1.0, 1.5))
    dispatched = 4096 * 2
    per_token = 2 * 4096 + 2 * 3 * 14336
    assert layer(hot)[0] - layer(even)[0] == pytest.approx(0.5 * dispatched * per_token)


def test_distinct_blocks_are_priced_apart() -> None:
    problem = make_problem("deepseek-v3", h100(4))
    found = layer_activations(problem, resolved(problem, megatron(1, 1, expert_parallel_size=8)))
    assert found.saved.shape == (1, 2)
    np.testing.assert_array_equal(found.kept, found.saved)
    tokens = 4096
    dense = 3 * 18432
    shared, routed, experts = 3 * 2048, 8 * (3 * 2048 + 7168), 256
    assert found.saved[0, 1] - found.saved[0, 0] == tokens * (2 * (shared + routed - dense) + 3 * 4 * experts)


def test_every_expert_of_plain_llama_4_works_on_every_token_in_backward_too() -> None:
    fields = {
        "num_local_experts": 8,
        "num_experts_per_tok": 1,
        "intermediate_size": 2816,
        "intermediate_size_mlp": 4096,
    }
    shape = {"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4}
    model = read_hf_config({"model_type": "llama4_text", "vocab_size": 1024, **shape, **fields})
    workload = Workload(sequence_length=1024, global_batch_size=8)
    problem = Problem(model, make_problem("gpt-2-xl", h100(1)).cluster, workload)
    strategies = ({"framework": "deepspeed", "kernels": kernels} for kernels in ("eager", "partly-fused"))
    found = layer_activations(problem, resolved(problem, *strategies))
    sparse = next(index for index, block in enumerate(model.blocks) if block.experts)
    eager, partly_fused = found.working[found.which, sparse]
    # 16-bit gradients of gate, up and what the experts read, of seven experts more a token.
    assert eager - partly_fused == 2 * 1024 * 7 * (2 * 2816 + 1024)
