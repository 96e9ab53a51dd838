"""Warm-up depths by schedule, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.memory.in_flight import in_flight
from cost_models.problem import Problem
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, megatron, resolved

PROBLEM = make_problem("llama-3-8b", h100(1), global_batch_size=16)


def held(problem: Problem = PROBLEM, **fields: Any) -> list[float]:
    table = resolved(problem, megatron(1, 4, data_parallel_size=2, **fields))
    return in_flight(problem, table, all_stages(problem.model, table)).layers[0].tolist()


def test_1f1b_holds_a_micro_batch_less_on_every_stage() -> None:
    assert held() == [8 * n for n in (4, 3, 2, 1)]


def test_few_micro_batches_bound_the_depth() -> None:
    assert held(micro_batch_size=4) == [8 * n for n in (2, 2, 2, 1)]


def test_interleaving_holds_what_its_warm_up_counts() -> None:
    # 2(p - s - 1) + (v - 1)p + 1 passes of one chunk of 4 layers
    assert held(virtual_pipeline_size=2) == [4 * n for n in (11, 9, 7, 5)]


@pytest.mark.parametrize(
    ("micro_batches", "passes"),
    [
        (5, [10, 10, 8, 6]),  # rounds of 5: 2(p - s - 1) + 5 + 1 passes, 5 x 2 at most
        (22, [13, 11, 9, 7]),  # rounds of 6, the last of 4
        (24, [11, 9, 7, 5]),  # rounds of 4, as many as there are stages
    ],
)
def test_micro_batches_that_do_not_fill_rounds_go_in_larger_ones(micro_batches: int, passes: list[int]) -> None:
    problem = make_problem("llama-3-8b", h100(1), global_batch_size=2 * micro_batches)
    assert held(problem, virtual_pipeline_size=2) == [4 * n for n in passes]


def test_unequal_chunks_weigh_by_their_layers() -> None:
    # Stage 0 holds chunks 0 and 4: its 11 passes are 7 of the first and 4 of the second.
    layout = [6, 4, 4, 4, 2, 4, 4, 4]
    assert held(virtual_pipeline_size=2, layers_per_stage=layout)[0] == 7 * 6 + 4 * 2


def test_gpipe_holds_all_micro_batches() -> None:
    table = resolved(PROBLEM, {"framework": "fsdp2", "pipeline_parallel_size": 4, "pipeline_schedule": "gpipe"})
    found = in_flight(PROBLEM, table, all_stages(PROBLEM.model, table))
    assert found.layers[0].tolist() == [8 * 8.0] * 4
    assert found.leaving.tolist() == [8.0] * 4


@pytest.mark.parametrize(("virtual", "expected"), [(1, [32, 24, 16, 8]), (2, [32, 32, 32, 32])])
def test_zero_bubble_peaks_like_the_first_stage_of_1f1b_at_most(virtual: int, expected: list[float]) -> None:
    assert held(pipeline_schedule="zero-bubble", virtual_pipeline_size=virtual) == expected


def test_no_pipeline_holds_one_micro_batch() -> None:
    table = resolved(PROBLEM, megatron(1, 1))
    assert in_flight(PROBLEM, table, all_stages(PROBLEM.model, table)).layers[0].tolist() == [32.0]
