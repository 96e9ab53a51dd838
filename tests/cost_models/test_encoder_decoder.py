"""T5: cross attention, two look-ups, position biases, and the encoder's output that all of the decoder reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.cluster_input import resolve_cluster
from cost_models.hf_config import read_hf_config
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.rules import violations
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.flops import model_flops
from cost_models.workload import Workload
from tests.cost_models.problems import h100, megatron, resolved

SEQUENCE, BATCH = 512, 256
# T5-3B (arXiv 1910.10683, section 3.7): 24 + 24 blocks, d_model 1024, d_ff 16,384, 32 heads of 128.
T5_3B = {
    "model_type": "t5", "d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24,
    "vocab_size": 32128,
}  # fmt: skip
ATTENTION, FEED_FORWARD = 4 * 1024 * 4096, 2 * 1024 * 16384


def t5(**workload: Any) -> Problem:
    return Problem(read_hf_config(T5_3B), resolve_cluster(h100(1)), Workload(SEQUENCE, BATCH, **workload))


def memory(problem: Problem, **strategy: Any) -> MemoryEstimate:
    table = resolved(problem, strategy)
    assert not violations(problem, table).any()
    return estimate_memory(problem, table, all_stages(problem.model, table))


def seconds(problem: Problem, **strategy: Any) -> TimeEstimate:
    table = resolved(problem, strategy)
    assert not violations(problem, table).any()
    return estimate_time(problem, table, all_stages(problem.model, table))


def test_work_is_that_of_both_stacks() -> None:
    matrices = 24 * (ATTENTION + FEED_FORWARD) + 24 * (2 * ATTENTION + FEED_FORWARD) + 1024 * 32128
    # Two products of every query with every key in each of 72 attentions.
    scores = 72 * 2 * 32 * 2 * 128 * SEQUENCE
    assert model_flops(t5()) == SEQUENCE * BATCH * (6 * matrices + 3 * scores)


def test_published_parameters_are_all_stored() -> None:
    # arXiv 1910.10683, section 3.7: about 2.8 billion.
    problem = t5()
    parts = memory(problem, framework="ddp", parameter_dtype="bf16").parts
    assert parts["parameters"][0] == pytest.approx(2 * 2.85e9, rel=0.01)


def test_a_decoder_block_keeps_a_second_attention_and_a_third_norm() -> None:
    problem = t5()
    model = problem.model
    decoder = memory(problem, framework="megatron-lm", micro_batch_size=1).activation_bytes_per_layer[0]
    tokens, inner = SEQUENCE, 32 * 128
    # Fused kernels: inputs and outputs of norms; queries, keys, values, output, statistics; the result of
    # relu, which the last matrix reads.
    norms = 3 * (2 * 2 * 1024 + 4)
    attention = 2 * (2 * 4 * inner + 4 * 32)
    perceptron = 2 * 16384
    assert model.blocks[model.layer_blocks[24]].cross_attention is not None
    assert decoder == tokens * (norms + attention + perceptron)


def test_biases_grow_with_the_square_of_the_sequence() -> None:
    few, twice = (
        memory(t5(), framework="ddp", micro_batch_size=size, kernels="fused").parts["activations"][0] for size in (4, 8)
    )
    # One bias serves all samples of a fused kernel: what does not grow with the micro-batch.
    fixed = 2 * few - twice
    assert fixed == pytest.approx(2 * 2 * 2 * 32 * SEQUENCE**2, rel=1e-6)


def test_tensor_ranks_sum_after_each_of_the_three_parts() -> None:
    full, self_only = t5(), t5()
    encoder = read_hf_config({**T5_3B, "num_decoder_layers": 1})
    self_only = Problem(encoder, full.cluster, full.workload)
    both, fewer = (
        seconds(problem, **megatron(2, 1, sequence_parallel=False)).parts["tensor_parallel"][0]
        for problem in (full, self_only)
    )
    # 24 encoder blocks of two parts; 24 or 1 decoder blocks of three; the same at both ends of the model.
    one_part = (both - fewer) / (23 * 3)
    assert fewer > one_part * (24 * 2 + 3)
    assert fewer < one_part * (24 * 2 + 3) * 1.25


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("framework", ["deepspeed", "ddp", "fsdp1", "fsdp2", "megatron-lm"])
def test_every_framework_prices_it(framework: str, attention: str) -> None:
    problem = t5(attention=attention)
    found = seconds(problem, framework=framework, micro_batch_size=4, activation_checkpointing="full")
    # Between 8 % (eager attention) and 65 % of 8 x 989 TFLOP/s.
    fastest = model_flops(problem) / (8 * 989e12 * 0.65)
    assert fastest < found.step_seconds[0] < 65 / 8 * fastest
    peak = memory(problem, framework=framework, micro_batch_size=4, activation_checkpointing="full").peak_bytes[0]
    assert np.isfinite(peak)
