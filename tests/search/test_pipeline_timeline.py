"""Timelines of pipeline schedules: they end when the formulas of the time model say, and keep their dependencies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.services.reports import BUSY
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.stage_passes import stage_passes
from search.pipeline_timeline import Pass, StageTimes, timeline
from tests.cost_models.problems import a100, make_problem, megatron, resolved

EQUAL = StageTimes(forward=1.0, input_gradient=1.25, weight_gradient=0.75)
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1), ("zero-bubble", 2)]


@pytest.mark.parametrize(("size", "micro_batches"), [(1, 3), (2, 2), (2, 8), (4, 8), (8, 8), (8, 24)])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES[:4])
def test_equal_stages_wait_as_long_as_the_formula_says(
    size: int, micro_batches: int, schedule: str, chunks: int
) -> None:
    step = timeline(schedule, [EQUAL] * size, chunks_per_stage=chunks, micro_batches=micro_batches)
    # (P - 1)(F + B) / v: arXiv 2104.04473 section 2.2.
    bubble = (size - 1) * EQUAL.whole / chunks
    assert step.makespan_seconds == pytest.approx(micro_batches * EQUAL.whole + bubble)
    assert step.idle_seconds == pytest.approx([bubble] * size)


@pytest.mark.parametrize(("size", "micro_batches"), [(2, 8), (4, 8), (4, 16), (8, 32)])
def test_zero_bubble_lies_between_its_paper_and_1f1b(size: int, micro_batches: int) -> None:
    # ZB-H1 of arXiv 2401.10241 table 2: (P - 1)(F + B - W) at least; placed greedily it waits a little longer.
    least = (size - 1) * (EQUAL.forward + EQUAL.input_gradient - EQUAL.weight_gradient)
    step = timeline("zero-bubble", [EQUAL] * size, chunks_per_stage=1, micro_batches=micro_batches)
    bubble = step.makespan_seconds - micro_batches * EQUAL.whole
    assert least - 1e-9 <= bubble <= least + 2.5 * EQUAL.weight_gradient
    assert bubble < (size - 1) * EQUAL.whole


@given(
    schedule=st.sampled_from(SCHEDULES),
    times=st.lists(
        st.builds(StageTimes, *[st.floats(0.1, 2.0)] * 3),
        min_size=1,
        max_size=5,
    ),
    rounds=st.integers(1, 3),
)
def test_any_stages_keep_order_and_do_all_work(schedule: tuple[str, int], times: list[StageTimes], rounds: int) -> None:
    name, chunks = schedule
    size, micro_batches = len(times), rounds * len(times)
    step = timeline(name, times, chunks_per_stage=chunks, micro_batches=micro_batches)
    passes = step.passes
    kinds = 3 if name == "zero-bubble" else 2
    assert len({(one.kind, one.chunk, one.micro_batch) for one in passes}) == len(passes)
    assert len(passes) == kinds * chunks * size * micro_batches
    at = {(one.kind, one.chunk, one.micro_batch): one for one in passes}
    for one in passes:
        for needed in _needed(one, size * chunks):
            assert at[needed].end_seconds <= one.start_seconds
    for stage in range(size):
        mine = [one for one in passes if one.stage == stage]
        assert all(before.end_seconds <= after.start_seconds for before, after in pairwise(mine))
        spent = sum(one.end_seconds - one.start_seconds for one in mine)
        assert spent == pytest.approx(micro_batches * times[stage].whole)


def _needed(one: Pass, chunks: int) -> list[tuple[str, int, int]]:
    chunk, batch = one.chunk, one.micro_batch
    if one.kind == "forward":
        return [("forward", chunk - 1, batch)] if chunk else []
    if one.kind == "weight_gradient":
        return [("backward", chunk, batch)]
    return [("forward", chunk, batch)] + ([("backward", chunk + 1, batch)] if chunk < chunks - 1 else [])


def test_one_forward_one_backward_holds_no_more_than_its_stages() -> None:
    passes = timeline("1f1b", [EQUAL] * 4, chunks_per_stage=1, micro_batches=16).passes
    for stage in range(4):
        held = most = 0
        for one in passes:
            if one.stage == stage:
                held += 1 if one.kind == "forward" else -1
                most = max(most, held)
        assert most == 4 - stage


@pytest.mark.parametrize(("micro_batches", "group"), [(10, 5), (11, 7), (7, 7), (9, 9), (14, 5), (5000, 4), (5004, 7)])
def test_interleaving_takes_any_groups_of_at_least_its_stages(micro_batches: int, group: int) -> None:
    step = timeline("interleaved", [EQUAL] * 4, chunks_per_stage=2, micro_batches=micro_batches, group=group)
    assert len(step.passes) == 2 * 4 * 2 * (micro_batches - step.left_out)
    # A larger group fills no faster.
    assert step.makespan_seconds >= (micro_batches + 1.5) * EQUAL.whole - 1e-9


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("gpipe", 1), ("zero-bubble", 1)])
def test_a_long_step_ends_when_it_would_if_all_of_it_were_played(
    schedule: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = StageTimes(forward=1.1, input_gradient=1.4, weight_gradient=0.75)
    stages = [EQUAL, EQUAL, EQUAL, slow]
    short = timeline(schedule, stages, chunks_per_stage=chunks, micro_batches=4096)
    monkeypatch.setattr("search.pipeline_timeline.MOST_PLAYED", 1 << 30)
    whole = timeline(schedule, stages, chunks_per_stage=chunks, micro_batches=4096)
    assert whole.left_out == 0
    assert short.left_out == 4096 - 48
    assert short.makespan_seconds == pytest.approx(whole.makespan_seconds, rel=1e-3)
    assert [one.micro_batch for one in short.passes[:40]] == [one.micro_batch for one in whole.passes[:40]]
    assert short.passes[-1].micro_batch == whole.passes[-1].micro_batch == 4095


def test_a_step_of_a_million_micro_batches_is_drawn_as_fast_as_a_short_one() -> None:
    step = timeline("1f1b", [EQUAL] * 64, chunks_per_stage=1, micro_batches=1_000_000)
    assert len(step.passes) == 2 * 64 * 192
    assert step.makespan_seconds == pytest.approx((1_000_000 + 63) * EQUAL.whole)


@pytest.mark.parametrize(
    "fields",
    [
        {"pipeline_schedule": "1f1b"},
        {"pipeline_schedule": "interleaved", "virtual_pipeline_size": 2},
        {"pipeline_schedule": "1f1b", "activation_checkpointing": "full"},
    ],
)
def test_agrees_with_the_step_time_of_a_model(fields: dict[str, Any]) -> None:
    problem = make_problem("gpt-3-175b", a100(8), sequence_length=2048, global_batch_size=64)
    table = resolved(problem, megatron(8, 8, zero_stage=0, **fields))
    estimate = estimate_time(problem, table, all_stages(problem.model, table))
    passes = stage_passes(problem, table)
    columns = (passes.forward.tolist(), passes.input_gradient.tolist(), passes.weight_gradient.tolist())
    stages = [StageTimes(*times) for times in zip(*columns, strict=True)]
    spent = sum(float(estimate.parts[name][0]) for name in BUSY)
    slowest = int(passes.busy.argmax())
    assert passes.busy[slowest] * 64 == pytest.approx(spent)
    # The head makes the last stage the slowest.
    assert slowest == 7
    assert passes.busy[0] < passes.busy[7]
    step = timeline(
        fields["pipeline_schedule"], stages, chunks_per_stage=fields.get("virtual_pipeline_size", 1), micro_batches=64
    )
    assert step.idle_seconds[slowest] == pytest.approx(float(estimate.parts["pipeline_bubble"][0]), rel=1e-9)
