"""Which attention kernel a framework calls, and what products run without tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from cost_models.catalog.hardware import load_gpu
from cost_models.problem import Problem
from cost_models.stages import all_stages
from cost_models.strategy import PRECISIONS
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import device_of
from cost_models.time.flops import model_flops, skipped_flops
from tests.cost_models.problems import a100, h100, make_problem, resolved

LONG = 524_288


def forward_seconds(problem: Problem, framework: str) -> float:
    table = resolved(problem, {"framework": framework, "kernels": "fused", "zero_stage": 0, "micro_batch_size": 1})
    return float(estimate_time(problem, table, all_stages(problem.model, table)).parts["forward"][0])


def long_problem(cluster: dict[str, Any], positions: Literal["rotary", "alibi"] = "rotary") -> Problem:
    problem = make_problem("llama-3-8b", cluster, sequence_length=LONG, global_batch_size=8)
    return replace(problem, model=replace(problem.model, position_embeddings=positions))


@pytest.fixture
def no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention counts in full as a model's FLOP, so that such lengths meet the ceiling of utilisation."""
    monkeypatch.setattr("cost_models.time.ceiling.HIGHEST_UTILISATION", 10.0)
    monkeypatch.setattr("cost_models.time.ceiling.HIGHEST_HARDWARE_UTILISATION", 10.0)


@pytest.mark.usefixtures("no_ceiling")
class TestKernels:
    def test_flash_attention_2_uses_less_of_hopper_than_kernels_written_for_it(self) -> None:
        problem = long_problem(h100(1))
        ratio = forward_seconds(problem, "nanotron") / forward_seconds(problem, "megatron-lm")
        assert ratio == pytest.approx(1 / default_coefficients().generation("hopper").plain_flash, rel=0.05)

    def test_on_ampere_it_is_the_newest(self) -> None:
        problem = long_problem(a100(1))
        assert forward_seconds(problem, "nanotron") == pytest.approx(forward_seconds(problem, "megatron-lm"), rel=0.02)

    @pytest.mark.parametrize("framework", ["megatron-lm", "fsdp1"])
    def test_a_position_bias_takes_an_older_kernel(self, framework: str) -> None:
        without = forward_seconds(long_problem(a100(1)), framework)
        biased = forward_seconds(long_problem(a100(1), "alibi"), framework)
        assert biased / without == pytest.approx(1 / default_coefficients().kernels.biased_flash, rel=0.05)


def test_fp32_products_run_on_cuda_cores() -> None:
    """cuBLAS reaches 0.89 of a V100's fp32 peak, whatever tensor cores reach of theirs."""
    device = device_of(load_gpu("v100-sxm2-32gb"), default_coefficients())
    fp32 = np.array([PRECISIONS.index("fp32")])
    assert device.wide_rate(fp32)[0] == pytest.approx(0.89 * 15.7e12)
    assert device.linear_rate(fp32)[0] == device.wide_rate(fp32)[0]


def test_half_of_causal_attention_is_skipped_by_flash_kernels_only() -> None:
    flash = make_problem("llama-3-8b", a100(1), sequence_length=8192)
    eager = make_problem("llama-3-8b", a100(1), sequence_length=8192, attention="eager")
    # 12 x layers x hidden x sequence a token (arXiv 2104.04473 equation 3), half of it masked.
    assert skipped_flops(flash) == pytest.approx(6 * 32 * 4096 * 8192 * flash.workload.tokens)
    assert skipped_flops(eager) == 0
    assert model_flops(flash) == model_flops(eager)


def test_eager_attention_with_heads_of_unaligned_rows_is_slower() -> None:
    problem = make_problem("gpt-3-175b", a100(8), sequence_length=2048, attention="eager", precision="fp16")
    block = problem.model.blocks[0]

    def forward(head_dim: int) -> float:
        attention = replace(block.attention, head_dim=head_dim, value_head_dim=head_dim)
        model = replace(problem.model, blocks=(replace(block, attention=attention),))
        table = resolved(problem, {"framework": "megatron-lm", "tensor_parallel_size": 8, "pipeline_parallel_size": 8})
        changed = replace(problem, model=model)
        return float(estimate_time(changed, table, all_stages(model, table)).parts["forward"][0])

    assert forward(126) > 1.01 * forward(128)
