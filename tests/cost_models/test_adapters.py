"""Which matrices get adapters, and that memory and time count the same ones."""

from __future__ import annotations

import pytest

from cost_models.adapters import adapted_linears
from cost_models.memory.weights import adapter_split
from cost_models.problem import Problem
from cost_models.time.flops import model_flops
from cost_models.workload import FineTuning, Workload
from tests.cost_models.problems import h100, make_problem

CASES = [
    ("llama-2-7b", "attention", {"q", "k", "v", "o"}),
    ("llama-2-7b", "attention-qv", {"q", "v"}),
    ("llama-2-7b", "all-linear", {"q", "k", "v", "o", "gate", "up", "down"}),
    ("gpt-2-xl", "attention-qv", {"qkv"}),
    ("deepseek-v2", "attention", {"q_down", "q_up", "kv_down", "kv_up", "o"}),
    ("deepseek-v2", "attention-qv", {"q_up", "kv_up"}),
    ("qwen2-57b-a14b", "all-linear", {"q", "k", "v", "o", "gate", "up", "down"}),
]


@pytest.mark.parametrize(("model", "target", "names"), CASES)
def test_a_target_names_its_matrices(model: str, target: str, names: set[str]) -> None:
    problem = make_problem(model, h100(1))
    found = {linear.name for linear in adapted_linears(problem.model.blocks[-1], _tuning(target, 16))}
    assert found == names


@pytest.mark.parametrize(("model", "target"), [(model, target) for model, target, _ in CASES])
def test_flop_follow_the_adapters_that_memory_keeps(model: str, target: str) -> None:
    problem = make_problem(model, h100(1))
    narrow, wide = (_with_tuning(problem, _tuning(target, rank)) for rank in (16, 32))
    used = 0.0
    for kind in problem.model.layer_blocks:
        block = problem.model.blocks[kind]
        adapters = adapter_split(block, _tuning(target, 16))
        of_experts = block.experts.experts_per_token / block.experts.experts if block.experts else 1.0
        used += adapters.tensor + adapters.whole + adapters.expert * of_experts
    added = model_flops(wide) - model_flops(narrow)
    assert added == pytest.approx(6 * used * narrow.workload.tokens)


def _tuning(target: str, rank: int) -> FineTuning:
    return FineTuning("lora", rank, target)  # type: ignore[arg-type]  # a parameter of the test


def _with_tuning(problem: Problem, tuning: FineTuning) -> Problem:
    return Problem(problem.model, problem.cluster, Workload(4096, 64, fine_tuning=tuning))
