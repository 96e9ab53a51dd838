"""NVFP4: bytes of its copies, what its products cost, and the public runs that used it."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.quantisation import NVFP4_BYTES
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from tests.cost_models.problems import make_problem, megatron, resolved

GIB = 2**30
GB300 = {"nodes": 64, "gpus_per_node": 4, "gpu": "gb300-279gb", "nvlink_domain_gpus": 64}
GB200 = {"nodes": 1, "gpus_per_node": 4, "gpu": "gb200-186gb", "nvlink_domain_gpus": 4}


def memory(problem: Problem, **strategy: Any) -> MemoryEstimate:
    table = resolved(problem, strategy)
    return estimate_memory(problem, table, all_stages(problem.model, table))


def seconds(problem: Problem, **strategy: Any) -> TimeEstimate:
    table = resolved(problem, strategy)
    return estimate_time(problem, table, all_stages(problem.model, table))


def test_an_element_takes_four_and_a_half_bits() -> None:
    # arXiv 2509.25149, section 2: an E4M3 scale for each 16 elements.
    assert NVFP4_BYTES * 8 == 4.5


def test_transformer_engine_keeps_two_copies_of_each_matrix() -> None:
    strategy = megatron(2, 1, micro_batch_size=1, activation_checkpointing="full")
    bf16, nvfp4 = (
        memory(make_problem("llama-3-8b", GB300, precision=name), **strategy).parts["parameters"][0]
        for name in ("bf16", "nvfp4")
    )
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    norms = 32 * 2 * 4096
    assert nvfp4 - bf16 == pytest.approx(2 * NVFP4_BYTES * (matrices / 2 + norms), rel=1e-6)


def test_saved_inputs_shrink_with_it() -> None:
    per_layer = {
        name: memory(make_problem("llama-3-8b", GB300, precision=name), **megatron(1, 1)).activation_bytes_per_layer[0]
        for name in ("fp8", "nvfp4")
    }
    # Two norm outputs, what attention wrote and the input of the last matrix.
    narrow = 4096 * (3 * 4096 + 14336)
    assert per_layer["fp8"] - per_layer["nvfp4"] == pytest.approx((1 - NVFP4_BYTES) * narrow)


def test_products_run_at_the_peak_of_fp4() -> None:
    fp8, nvfp4 = (
        seconds(make_problem("llama-3.1-405b", GB300, precision=name), **megatron(4, 8)).parts["backward"][0]
        for name in ("fp8", "nvfp4")
    )
    # GB300: three times the peak of fp8; attention, casts and element-wise work gain nothing.
    assert fp8 / 3 < nvfp4 < 0.75 * fp8


def test_step_of_a_vendor_run() -> None:
    # Megatron-Bridge's tables, 26.06: Llama 3.1 405B on 256 GB300, 34.786 s. The share of the peak is that of fp8: no
    # other run of NVFP4 with a step time is public, so that this one only checks it.
    problem = make_problem("llama-3.1-405b", GB300, sequence_length=8192, global_batch_size=1536, precision="nvfp4")
    found = seconds(problem, **megatron(4, 8, virtual_pipeline_size=4, micro_batch_size=1))
    assert found.step_seconds[0] == pytest.approx(34.786, rel=0.15)


@pytest.mark.parametrize(
    ("model", "micro_batch_size", "published_gib"), [("llama-3-8b", 32, 110.95), ("qwen3-8b", 16, 78.63)]
)
def test_memory_of_torchtitan_runs(model: str, micro_batch_size: int, published_gib: float) -> None:
    # torchtitan's nvfp4.md, 4 GB200, reserved bytes; 174.5 and 112.9 GiB in bf16, whose products the policy saves. The
    # last 15 % of the layers are in bf16.
    workload = {"sequence_length": 2048, "global_batch_size": 4 * micro_batch_size}
    strategy = {"framework": "fsdp2", "activation_checkpointing": "selective", "compile": True}
    found = memory(
        make_problem(model, GB200, precision="nvfp4", **workload), **strategy, micro_batch_size=micro_batch_size
    )
    assert found.peak_reserved_bytes[0] / GIB == pytest.approx(published_gib, rel=0.12)
