"""CPU work of routed experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import load_model
from cost_models.time.cases import LayerCases, layer_cases
from cost_models.time.coefficients import default_coefficients
from cost_models.time.expert_launches import DISPATCH_OPERATORS, launch_seconds, uncaptured_operators
from tests.cost_models.problems import h100, make_problem, megatron, resolved

QWEN = load_model("qwen3-30b-a3b")
TWO = np.array([2.0])


def cases(precision: str = "bf16", **fields: Any) -> LayerCases:
    problem = make_problem("qwen3-30b-a3b", h100(1), precision=precision)
    table = resolved(problem, megatron(1, 1, **fields))
    return layer_cases(problem, table, default_coefficients())[0]


def launched(of: LayerCases) -> float:
    return float(launch_seconds(QWEN.blocks[0], TWO, of)[0])


def test_every_local_expert_is_launched_by_itself() -> None:
    # 128 experts on 8 ranks, two products each, 4 us a launch and 9 around it.
    assert launched(cases(expert_parallel_size=8)) == pytest.approx(16 * 2 * 13e-6)
    assert launched(cases(expert_parallel_size=4)) == pytest.approx(32 * 2 * 13e-6)


def test_in_8_bit_its_input_is_quantised_too() -> None:
    assert launched(cases("fp8", expert_parallel_size=8)) == pytest.approx(16 * 2 * (4 * 4e-6 + 9e-6))


def test_a_grouped_product_of_torch_is_one_kernel() -> None:
    assert launched(cases(expert_parallel_size=8, kernels="partly-fused")) == 0


def test_only_experts_stay_out_of_graphs() -> None:
    assert uncaptured_operators(QWEN.blocks[0]) == DISPATCH_OPERATORS
    assert uncaptured_operators(load_model("llama-3-8b").blocks[0]) == 0
    assert float(launch_seconds(load_model("llama-3-8b").blocks[0], TWO, cases())[0]) == 0
