"""Timelines of pipeline schedules: they end when the formulas of the time model say, and keep their dependencies."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.pipeline_timeline import Pass, StageTimes, idle_seconds, makespan_seconds, timeline

EQUAL = StageTimes(forward=1.0, input_gradient=1.25, weight_gradient=0.75)
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1), ("zero-bubble", 2)]


@pytest.mark.parametrize(("size", "micro_batches"), [(1, 3), (2, 2), (2, 8), (4, 8), (8, 8), (8, 24)])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES[:4])
def test_equal_stages_wait_as_long_as_the_formula_says(
    size: int, micro_batches: int, schedule: str, chunks: int
) -> None:
    passes = timeline(schedule, [EQUAL] * size, chunks_per_stage=chunks, micro_batches=micro_batches)
    # (P - 1)(F + B) / v: arXiv 2104.04473 section 2.2.
    bubble = (size - 1) * EQUAL.whole / chunks
    assert makespan_seconds(passes) == pytest.approx(micro_batches * EQUAL.whole + bubble)
    assert list(idle_seconds(passes).values()) == pytest.approx([bubble] * size)


@pytest.mark.parametrize(("size", "micro_batches"), [(2, 8), (4, 8), (4, 16), (8, 32)])
def test_zero_bubble_lies_between_its_paper_and_1f1b(size: int, micro_batches: int) -> None:
    # ZB-H1 of arXiv 2401.10241 table 2: (P - 1)(F + B - W) at least; placed greedily it waits a little longer.
    least = (size - 1) * (EQUAL.forward + EQUAL.input_gradient - EQUAL.weight_gradient)
    passes = timeline("zero-bubble", [EQUAL] * size, chunks_per_stage=1, micro_batches=micro_batches)
    bubble = makespan_seconds(passes) - micro_batches * EQUAL.whole
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
    passes = timeline(name, times, chunks_per_stage=chunks, micro_batches=micro_batches)
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
        assert idle_seconds(passes)[stage] == pytest.approx(
            makespan_seconds(passes) - micro_batches * times[stage].whole
        )


def _needed(one: Pass, chunks: int) -> list[tuple[str, int, int]]:
    chunk, batch = one.chunk, one.micro_batch
    if one.kind == "forward":
        return [("forward", chunk - 1, batch)] if chunk else []
    if one.kind == "weight_gradient":
        return [("backward", chunk, batch)]
    return [("forward", chunk, batch)] + ([("backward", chunk + 1, batch)] if chunk < chunks - 1 else [])


def test_one_forward_one_backward_holds_no_more_than_its_stages() -> None:
    passes = timeline("1f1b", [EQUAL] * 4, chunks_per_stage=1, micro_batches=16)
    for stage in range(4):
        held = most = 0
        for one in passes:
            if one.stage == stage:
                held += 1 if one.kind == "forward" else -1
                most = max(most, held)
        assert most == 4 - stage
