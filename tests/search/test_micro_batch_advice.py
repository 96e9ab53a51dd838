"""Advice is valid, safe at the confidence, keeps the batch, and falls with what is observed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.estimate import score
from cost_models.problem import Problem
from cost_models.rules import violations
from cost_models.strategy import StrategyTable
from cost_models.units import GIB
from search.micro_batch_advice import Advice, advise
from search.neighbourhood import GROUPS, neighbours
from search.observed_memory import Observation
from tests.cost_models.corrections import JumpingCorrections
from tests.cost_models.problems import a100, h100, make_problem, megatron, resolved

EIGHT_B = make_problem("llama-3-8b", h100(1), global_batch_size=64)
FSDP = {"framework": "fsdp2", "zero_stage": 3, "activation_checkpointing": "full", "expandable_segments": True}
CASES: list[tuple[Problem, dict[str, Any]]] = [
    (EIGHT_B, FSDP),
    (EIGHT_B, {"framework": "deepspeed", "zero_stage": 2, "activation_checkpointing": "full"}),
    (make_problem("llama-2-13b", a100(2), global_batch_size=96), megatron(2, 2, activation_checkpointing="selective")),
    (make_problem("gpt-2-xl", h100(1), global_batch_size=48, sequence_length=1024), {"framework": "ddp"}),
    (make_problem("mixtral-8x7b", h100(2), global_batch_size=64), megatron(2, 1, expert_parallel_size=8)),
]


def predicted(problem: Problem, job: StrategyTable) -> dict[str, float]:
    memory = score(problem, job, memory_confidence=0.9).memory
    fullest = memory.fullest[0]
    return {
        "allocated": float(memory.peak_allocated_bytes[fullest]),
        "reserved": float(memory.peak_reserved_bytes[fullest]),
        "device": float(memory.peak_bytes[fullest]),
    }


def advice(problem: Problem, strategy: dict[str, Any], scale: float, **options: Any) -> Advice:
    job = resolved(problem, strategy)
    assert violations(problem, job)[0] == 0
    capacity = problem.cluster.capacity_bytes
    peaks = {name: min(value * scale, capacity) for name, value in predicted(problem, job).items()}
    seen = Observation(**peaks, growth_bytes_per_s=options.pop("growth", 0.0), at_limit=False)
    return advise(problem, job, seen, **{"memory_confidence": 0.9, "corrections": None} | options)


@settings(max_examples=12)
@given(st.sampled_from(CASES), st.floats(0.3, 1.5), st.floats(0.5, 0.99), st.booleans())
def test_what_is_proposed_is_valid_and_safe_and_keeps_the_batch(
    case: tuple[Problem, dict[str, Any]], scale: float, confidence: float, learned: bool
) -> None:
    problem, strategy = case
    corrections = JumpingCorrections() if learned else None
    found = advice(problem, strategy, scale, memory_confidence=confidence, corrections=corrections)
    table = resolved(problem, found.strategy)
    assert violations(problem, table)[0] == 0
    assert table.row(0) == found.strategy
    batch = found.strategy["data_parallel_size"] * found.strategy["micro_batch_size"]
    assert problem.workload.global_batch_size % batch == 0
    if not any(step.code == "nothing_fits" for step in found.steps):
        assert found.estimate["fits"]
        assert found.estimate["memory"]["oom_probability"] <= 1 - confidence + 1e-9
    kept = {
        name: value for name, value in found.strategy.items() if not any(name in group for group in GROUPS.values())
    }
    assert kept == {name: found.current["strategy"][name] for name in kept}
    assert found.throughput_gain == pytest.approx(
        found.current["time"]["step_seconds"] / found.estimate["time"]["step_seconds"] - 1, abs=1e-6
    )


@settings(max_examples=7)
@given(st.sampled_from(CASES), st.lists(st.floats(0.3, 1.6), min_size=2, max_size=5))
def test_more_observed_memory_never_advises_a_larger_micro_batch(
    case: tuple[Problem, dict[str, Any]], scales: list[float]
) -> None:
    sizes = [advice(*case, scale).strategy["micro_batch_size"] for scale in sorted(scales)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=7)
@given(st.sampled_from(CASES), st.floats(0.4, 1.3))
def test_changes_in_their_order_add_up(case: tuple[Problem, dict[str, Any]], scale: float) -> None:
    found = advice(*case, scale)
    changes = [step for step in found.steps if step.field is not None]
    if any(step.saved_bytes is None for step in changes):
        return
    saved = sum(step.saved_bytes for step in changes if step.saved_bytes is not None)
    seconds = sum(step.step_seconds_change for step in changes if step.step_seconds_change is not None)
    before, after = found.current, found.estimate
    assert saved / GIB == pytest.approx(before["memory"]["required_gib"] - after["memory"]["required_gib"], abs=1e-6)
    assert seconds == pytest.approx(after["time"]["step_seconds"] - before["time"]["step_seconds"], abs=1e-6)
    for step in changes:
        assert step.before != step.after


def test_a_job_with_room_gives_up_recomputation() -> None:
    found = advice(EIGHT_B, FSDP, 1.0)
    assert found.strategy["activation_checkpointing"] != "full" or found.strategy["checkpointed_layers"] < 32
    assert found.throughput_gain > 0.1


def test_where_nothing_need_change_it_says_so() -> None:
    first = advice(EIGHT_B, FSDP, 1.0)
    again = advice(EIGHT_B, first.strategy, 1.0)
    while any(step.field for step in again.steps):
        again = advice(EIGHT_B, again.strategy, 1.0)
    assert again.throughput_gain == 0
    assert again.strategy == again.current["strategy"]
    assert any(step.code == "nothing_to_change" for step in again.steps)


def test_where_memory_is_short_what_is_safe_may_be_slower() -> None:
    strategy = {"framework": "fsdp2", "zero_stage": 3, "micro_batch_size": 4, "activation_checkpointing": "none"}
    found = advice(make_problem("llama-3-8b", h100(1), global_batch_size=64, sequence_length=8192), strategy, 1.0)
    assert not found.current["fits"]
    assert found.estimate["fits"]
    first = found.steps[0]
    assert first.saved_bytes is not None
    assert first.saved_bytes > 0, "what saves memory comes first"


def test_nothing_fits_is_said() -> None:
    problem = make_problem("llama-3-70b", {"nodes": 1, "gpus_per_node": 8, "gpu": "a10-24gb"}, global_batch_size=8)
    found = advice(problem, {"framework": "fsdp2", "zero_stage": 3, "activation_checkpointing": "full"}, 1.0)
    assert any(step.code == "nothing_fits" for step in found.steps)
    assert not found.estimate["fits"]


def test_growth_is_said_and_widens_the_bound() -> None:
    steady, growing = (advice(EIGHT_B, FSDP, 1.0, growth=growth) for growth in (0.0, 2.0**20))
    assert any(step.code == "memory_still_grows" for step in growing.steps)
    assert growing.current["memory"]["required_upper_gib"] > steady.current["memory"]["required_upper_gib"]


@pytest.mark.parametrize(("scale", "said"), [(0.1, True), (0.7, False), (1.0, False), (1.8, False), (2.6, True)])
def test_an_observation_that_is_hardly_of_the_job_is_said_to_be(scale: float, said: bool) -> None:
    codes = [step.code for step in advice(EIGHT_B, FSDP, scale).steps]
    assert ("observed_unlike_predicted" in codes) is said


def test_the_provenance_names_the_observation() -> None:
    provenance = advice(EIGHT_B, FSDP, 0.9).estimate["provenance"]
    assert provenance["memory"] == "learned"
    assert provenance["notes"][-1].startswith("Memory: corrected by the observed curve of this job")


def test_neighbours_begin_with_the_job() -> None:
    job = resolved(EIGHT_B, FSDP)
    found = neighbours(EIGHT_B, job)
    assert found[0] == job.row(0)
    assert {row["micro_batch_size"] for row in found if row["data_parallel_size"] == 8} == {1, 2, 4, 8}
    assert {row["framework"] for row in found} == {"fsdp2"}
