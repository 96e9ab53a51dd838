"""The head of a vocabulary that does not fill aligned rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.time.cases import layer_cases
from cost_models.time.coefficients import default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.communication import case_groups
from cost_models.time.device import device_of
from cost_models.time.ends import head_seconds
from tests.cost_models.problems import h100, make_problem, megatron, resolved


def products(vocabulary: int, framework: str) -> float:
    """Weight gradient of the head, which nothing but its product and its accumulation takes part in."""
    problem = make_problem("gpt-2-xl", h100(1), sequence_length=1024, global_batch_size=64)
    problem = replace(problem, model=replace(problem.model, vocab_size=vocabulary))
    strategy = megatron(1, 1) if framework == "megatron-lm" else {"framework": framework}
    table = resolved(problem, strategy | {"micro_batch_size": 8})
    coefficients = default_coefficients()
    device, network = device_of(problem.cluster.gpu, coefficients), Network(problem.cluster, coefficients)
    endless = replace(device, gpu=replace(device.gpu, memory_bytes_per_s=np.inf))
    cases, _ = layer_cases(problem, table, coefficients)
    return float(head_seconds(problem, cases, network, case_groups(network, cases), endless).weight_gradient[0])


@pytest.mark.parametrize(("vocabulary", "slower"), [(50264, 1.0), (50258, 0.6), (50260, 0.6), (50257, 0.35)])
def test_rows_that_begin_anywhere_multiply_slowly(vocabulary: int, slower: float) -> None:
    aligned = products(50304, "ddp")
    assert products(vocabulary, "ddp") == pytest.approx(aligned / slower, rel=0.01)


def test_megatron_pads_them() -> None:
    assert products(50257, "megatron-lm") == products(50304, "megatron-lm")
