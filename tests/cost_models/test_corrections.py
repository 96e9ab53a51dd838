"""Estimates that measured runs correct: what is multiplied, what adds up, what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.answer import full_answers, summary_answers
from cost_models.corrections import Corrections, MemoryCorrection
from cost_models.estimate import estimate, score
from cost_models.memory.error import NormalError, TabulatedError
from cost_models.units import GIB
from tests.cost_models.corrections import DEVIATIONS, LEVELS, JumpingCorrections, NoCorrections
from tests.cost_models.problems import h100, make_problem, megatron, resolved

LLAMA = make_problem("llama-3-70b", h100(8), sequence_length=8192, global_batch_size=128, training_tokens=1.0e12)
STRATEGIES = (
    megatron(4, 4, virtual_pipeline_size=5),
    megatron(8, 2),
    megatron(8, 1, activation_checkpointing="full"),
    megatron(4, 8, micro_batch_size=2),
    {"framework": "fsdp2", "zero_stage": 3, "activation_checkpointing": "full"},
)
TABLE = resolved(LLAMA, *STRATEGIES)


def answers(corrections: Corrections | None, confidence: float = 0.9) -> list[dict[str, Any]]:
    return full_answers(estimate(LLAMA, TABLE, memory_confidence=confidence, corrections=corrections))


def test_a_version_that_learned_nothing_changes_no_figure() -> None:
    for plain, corrected in zip(answers(None), answers(NoCorrections()), strict=True):
        assert plain["provenance"]["notes"] != corrected["provenance"]["notes"]
        assert {**corrected, "provenance": None} == {**plain, "provenance": None}
        kinds = {name: plain["provenance"][name] for name in ("time", "memory")}
        assert {name: corrected["provenance"][name] for name in ("time", "memory")} == kinds


def test_memory_of_every_stage_is_multiplied_and_the_difference_is_a_part() -> None:
    corrections = JumpingCorrections()
    factors = corrections.factor(TABLE)
    for plain, corrected, factor in zip(answers(None), answers(corrections), factors, strict=True):
        before, after = plain["memory"], corrected["memory"]
        assert after["analytical_gib"] == before["peak_gib"]
        assert after["peak_gib"] == pytest.approx(before["peak_gib"] * factor * 1.05, abs=1e-8)
        assert after["required_gib"] == pytest.approx(before["required_gib"] * factor, abs=1e-8)
        assert after["peak_moment"] == before["peak_moment"]
        assert after["device_load_peak_gib"] == before["device_load_peak_gib"]
        for old, new in zip([before, *before["stages"]], [after, *after["stages"]], strict=True):
            assert new["peak_gib"] == pytest.approx(old["peak_gib"] * factor * 1.05, abs=1e-8)
            assert new["peak_reserved_gib"] == pytest.approx(old["peak_reserved_gib"] * factor * 1.02, abs=1e-8)
            assert new["peak_allocated_gib"] == pytest.approx(old["peak_allocated_gib"] * factor, abs=1e-8)
            parts = new["breakdown_gib"]
            assert parts["learned_correction"] == pytest.approx(new["peak_gib"] - old["peak_gib"], abs=1e-8)
            assert sum(parts.values()) == pytest.approx(new["peak_gib"], abs=1e-8)
            assert {**parts, "learned_correction": 0.0} == old["breakdown_gib"]


def test_a_summary_says_the_same_as_the_full_answer() -> None:
    corrected = estimate(LLAMA, TABLE, memory_confidence=0.9, corrections=JumpingCorrections())
    for short, full in zip(summary_answers(corrected), full_answers(corrected), strict=True):
        assert (short["fits"], short["peak_gib"]) == (full["fits"], full["memory"]["peak_gib"])
        assert short["step_seconds"] == full["time"]["step_seconds"]


def test_every_part_of_the_step_is_multiplied_and_what_follows_follows() -> None:
    corrections = JumpingCorrections(time_factors={"megatron-lm": 1.25})
    for plain, corrected in zip(answers(None), answers(corrections), strict=True):
        factor = 1.25 if plain["strategy"]["framework"] == "megatron-lm" else 1.0
        before, after = plain["time"], corrected["time"]
        assert after["step_seconds"] == pytest.approx(before["step_seconds"] * factor, rel=1e-8)
        for name, seconds in before["breakdown_seconds"].items():
            assert after["breakdown_seconds"][name] == pytest.approx(seconds * factor, abs=1e-8)
        assert sum(after["breakdown_seconds"].values()) == pytest.approx(after["step_seconds"], abs=1e-7)
        for name in ("tokens_per_second", "model_tflops_per_gpu", "mfu", "hfu"):
            assert corrected["throughput"][name] == pytest.approx(plain["throughput"][name] / factor, rel=1e-6)
        for name in ("days", "gpu_hours", "energy_kwh"):
            assert corrected["cost"][name] == pytest.approx(plain["cost"][name] * factor, rel=1e-6)


class TestProvenance:
    def test_what_was_learned_is_named_with_its_version_basis_and_runs(self) -> None:
        corrections = JumpingCorrections(version=12, time_factors={"megatron-lm": 1.25})
        first, *_, last = answers(corrections)
        assert (first["provenance"]["memory"], first["provenance"]["time"]) == ("learned", "learned")
        assert first["provenance"]["notes"][-2:] == [
            "Memory: corrected by version 12 of what was learned from measured runs; its bound rests on 40 runs of "
            "megatron-lm.",
            "Step time: multiplied by 1.250 (standard deviation 5.0%), as version 12 of what was learned from measured "
            "runs takes it from 5 runs of megatron-lm on this cluster.",
        ]
        # No run of fsdp2 on this cluster: its time is that of the formulas.
        assert (last["provenance"]["memory"], last["provenance"]["time"]) == ("learned", "calibrated")
        assert last["provenance"]["notes"][-2].endswith("its bound rests on 12 own runs.")
        assert "knows no run of fsdp2 on this cluster" in last["provenance"]["notes"][-1]

    def test_without_corrections_the_notes_say_so(self) -> None:
        for result in answers(None):
            assert result["provenance"]["notes"][-1] == "Memory: no learned correction is applied."
        for result in answers(JumpingCorrections()):
            assert "Memory: no learned correction is applied." not in result["provenance"]["notes"]


def test_warnings_look_at_corrected_figures() -> None:
    problem = make_problem("llama-3-8b", h100(1), sequence_length=32_768, global_batch_size=8)
    table = resolved(problem, {"framework": "fsdp2", "activation_checkpointing": "full"})
    strong = replace(JumpingCorrections(), least=3.0, most=3.0)
    plain, corrected = (
        full_answers(estimate(problem, table, memory_confidence=0.9, corrections=one))[0] for one in (None, strong)
    )
    assert "logits_dominate" in {warning["code"] for warning in plain["warnings"]}
    assert "logits_dominate" not in {warning["code"] for warning in corrected["warnings"]}
    # Just inside the bound: the formulas see ample room, what was learned does not.
    needs = score(problem, table, memory_confidence=0.9).required_bytes[0]
    factor = problem.cluster.capacity_bytes / needs / np.exp(0.16)
    tight = replace(JumpingCorrections(), least=factor, most=factor)
    found = full_answers(estimate(problem, table, memory_confidence=0.9, corrections=tight))[0]
    message = {warning["code"]: warning["message"] for warning in found["warnings"]}["near_memory_limit"]
    assert message.startswith(f"needs {needs * factor / GIB:.1f} of {problem.cluster.capacity_bytes / GIB:.1f} GiB")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    least=st.floats(0.3, 1.0),
    width=st.floats(0.0, 2.0),
    confidence=st.floats(0.5, 0.995),
)
def test_what_fits_is_within_the_risk_taken(seed: int, least: float, width: float, confidence: float) -> None:
    corrections = JumpingCorrections(least, least + width, seed)
    for result in answers(corrections, confidence):
        memory = result["memory"]
        assert memory["peak_allocated_gib"] <= memory["peak_reserved_gib"] <= memory["peak_gib"]
        assert sum(memory["breakdown_gib"].values()) == pytest.approx(memory["peak_gib"], abs=1e-8)
        loaded = memory["device_load_peak_gib"] <= memory["capacity_gib"]
        assert result["fits"] == (memory["required_upper_gib"] <= memory["capacity_gib"] and loaded)
        if abs(memory["required_upper_gib"] - memory["capacity_gib"]) > 1e-6:
            assert result["fits"] == (memory["oom_probability"] <= 1 - confidence and loaded)


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.floats(0.2, 3.0)] * 3))
def test_statistics_keep_their_order_on_every_stage_and_the_fullest_stays(factors: tuple[float, float, float]) -> None:
    memory = score(LLAMA, TABLE, memory_confidence=0.9).memory
    allocated, reserved, device = (np.full(len(TABLE), factor) for factor in factors)
    error = NormalError(np.full(len(TABLE), 0.1))
    basis = np.zeros(len(TABLE), dtype=np.int64)
    found = MemoryCorrection(allocated, reserved, device, device, error, basis, ("runs",)).apply(memory)
    assert (found.peak_allocated_bytes <= found.peak_reserved_bytes).all()
    assert (found.peak_reserved_bytes <= found.peak_bytes).all()
    assert (found.peak_bytes == memory.peak_bytes * device[0]).all()
    most = np.maximum.reduceat(found.peak_bytes, found.stages.start)
    assert (found.peak_bytes[found.fullest] == most).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1), st.floats(0.001, 0.999))
def test_the_bound_and_the_probability_of_a_table_agree(group: int, confidence: float) -> None:
    error = TabulatedError(LEVELS, DEVIATIONS, np.array([group]))
    room = np.log(error.bound(confidence))
    assert error.exceedance(room)[0] == pytest.approx(1 - confidence, abs=1e-9)
    assert error.exceedance(room + 0.01)[0] < 1 - confidence < error.exceedance(room - 0.01)[0]
