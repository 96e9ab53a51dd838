"""Work of LoRA adapters by what a framework puts them beside."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.time.cases import layer_cases
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import device_of
from cost_models.time.lora import ADAPTER_OPERATORS, AdapterWork, adapter_work
from cost_models.workload import FineTuning
from tests.cost_models.problems import h100, make_problem, megatron, resolved

COEFFICIENTS = default_coefficients()
HIDDEN, KEY_VALUE, FFN, RANK = 4096, 1024, 14336, 16


def work(target: str, framework: str) -> AdapterWork:
    """Of a layer of Llama-3-8B on one GPU."""
    tuning = FineTuning("lora", rank=RANK, target=target)
    problem = make_problem("llama-3-8b", h100(1), sequence_length=4096, global_batch_size=8)
    fields = megatron(1, 1) | {"framework": framework} if framework == "megatron-lm" else {"framework": framework}
    cases = layer_cases(problem, resolved(problem, fields), COEFFICIENTS)[0]
    device = device_of(problem.cluster.gpu, COEFFICIENTS)
    return adapter_work(problem.model.blocks[0], 1.0, cases, tuning, device)


class TestMergedProjections:
    def test_megatron_has_one_adapter_beside_queries_keys_and_values(self) -> None:
        merged, apart = work("attention", "megatron-lm"), work("attention", "ddp")
        assert merged.operators[0] == 2 * ADAPTER_OPERATORS
        assert apart.operators[0] == 4 * ADAPTER_OPERATORS
        outputs = HIDDEN + 2 * KEY_VALUE + HIDDEN
        assert merged.weights[0] == RANK * (outputs + 2 * HIDDEN)
        assert apart.weights[0] == RANK * (outputs + 4 * HIDDEN)

    def test_gate_and_up_likewise(self) -> None:
        merged = work("all-linear", "megatron-lm")
        assert merged.operators[0] == 4 * ADAPTER_OPERATORS
        attention, feed_forward = 2 * HIDDEN + 2 * KEY_VALUE + 2 * HIDDEN, (HIDDEN + 2 * FFN) + (FFN + HIDDEN)
        assert merged.weights[0] == RANK * (attention + feed_forward)

    def test_it_reads_the_input_once(self) -> None:
        merged, apart = work("attention", "megatron-lm"), work("attention", "ddp")
        for name in ("forward", "input_gradient", "weight_gradient"):
            assert getattr(merged, name)[0] < getattr(apart, name)[0]


def test_without_fine_tuning_there_is_none() -> None:
    problem = make_problem("llama-3-8b", h100(1), sequence_length=4096, global_batch_size=8)
    cases = layer_cases(problem, resolved(problem, megatron(1, 1)), COEFFICIENTS)[0]
    none = adapter_work(problem.model.blocks[0], 1.0, cases, None, device_of(problem.cluster.gpu, COEFFICIENTS))
    assert none.weights == pytest.approx(np.zeros(1))
