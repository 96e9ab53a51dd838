"""Recomputation of whole layers with and without PyTorch's early stop."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.problem import Problem
from cost_models.results import TimeEstimate
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from tests.cost_models.problems import a100, make_problem, megatron, resolved


def problem(model: str = "gpt-3-175b", **workload: Any) -> Problem:
    return make_problem(model, a100(1), sequence_length=1024, global_batch_size=64, **workload)


def estimate(solved: Problem, **strategy: Any) -> TimeEstimate:
    table = resolved(solved, {"micro_batch_size": 8, "activation_checkpointing": "full"} | strategy)
    return estimate_time(solved, table, all_stages(solved.model, table))


def recomputed_share(solved: Problem, **strategy: Any) -> float:
    """Of the forward FLOP of all layers."""
    found = estimate(solved, **strategy)
    hidden, layers = solved.model.hidden_size, solved.model.layers
    forward = solved.workload.tokens * layers * (24 * hidden**2 + 4 * 1024 * hidden)
    return float(found.hardware_flops[0] - found.model_flops[0]) / forward


class TestEarlyStop:
    def test_spares_the_last_product(self) -> None:
        """fc2 is 8 of 24 hidden sizes squared, beside attention's 4 times the sequence."""
        hidden = problem().model.hidden_size
        expected = (16 * hidden + 4 * 1024) / (24 * hidden + 4 * 1024)
        for framework in ("fsdp1", "fsdp2", "ddp"):
            assert recomputed_share(problem(), framework=framework) == pytest.approx(expected)

    def test_re_entrant_checkpointing_runs_the_whole_pass(self) -> None:
        assert recomputed_share(problem(), **megatron(1, 1)) == pytest.approx(1.0)
        assert recomputed_share(problem(), framework="deepspeed") == pytest.approx(1.0)

    def test_dropout_saves_its_mask_after_the_last_product(self) -> None:
        assert recomputed_share(problem(dropout=0.1), framework="fsdp1") == pytest.approx(1.0)

    def test_saves_time_as_it_saves_flop(self) -> None:
        plain, dropped = (estimate(problem(dropout=rate), framework="fsdp1") for rate in (0.0, 0.1))
        ratio = plain.parts["recompute"][0] / dropped.parts["recompute"][0]
        assert 0.6 < ratio < 0.72

    def test_norms_after_a_part_and_experts_are_recomputed_whole(self) -> None:
        for model in ("gemma-2-27b", "mixtral-8x7b"):
            none, full = (
                estimate(problem(model), framework="fsdp2", activation_checkpointing=kind) for kind in ("none", "full")
            )
            again = full.hardware_flops[0] - none.hardware_flops[0]
            layers = none.hardware_flops[0] - head_flops(problem(model))
            assert again == pytest.approx(layers / 3)


def head_flops(solved: Problem) -> float:
    return 6.0 * solved.workload.tokens * solved.model.hidden_size * solved.model.vocab_size
