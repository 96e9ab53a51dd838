"""A curve comes to peaks, growth and ratios; what cannot be is refused with its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.errors import InvalidInput
from cost_models.estimate import score
from cost_models.memory import estimate_memory
from cost_models.stages import all_stages
from cost_models.units import GIB
from search.observed_memory import REPEATED_DEVIATION, Observation, Sample, observe, read_curve, unseen_deviation
from tests.cost_models.problems import h100, make_problem, megatron, resolved

PROBLEM = make_problem("llama-3-8b", h100(1), global_batch_size=64)
JOB = resolved(PROBLEM, megatron(2, 1))


def sample(
    seconds: float, allocated: float | None, reserved: float | None = None, device: float | None = None
) -> Sample:
    return Sample(seconds, *(None if value is None else value * GIB for value in (allocated, reserved, device)))


def code_of(samples: list[Sample]) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as refused:
        read_curve(samples, PROBLEM)
    return refused.value.loc, refused.value.code


class TestCurve:
    def test_peaks(self) -> None:
        found = read_curve(
            [sample(0, 10, 12), sample(1, 30, None, 40), sample(2, 20, 35), sample(3, 20, 35, 41)], PROBLEM
        )
        assert found == Observation(30 * GIB, 35 * GIB, 41 * GIB, 0.0, False)
        assert found.idle_share == pytest.approx(1 / 7)

    def test_growth_at_the_end(self) -> None:
        found = read_curve([sample(float(second), 20 + second / 10) for second in range(101)], PROBLEM)
        assert found.growth_bytes_per_s == pytest.approx(0.1 * GIB)

    def test_warm_up_is_no_growth(self) -> None:
        found = read_curve([sample(float(second), min(20 + second, 40)) for second in range(101)], PROBLEM)
        assert found.growth_bytes_per_s == 0

    def test_one_sample_says_nothing_of_growth(self) -> None:
        assert read_curve([sample(5, 20)], PROBLEM).growth_bytes_per_s == 0

    @pytest.mark.parametrize(("reserved", "at_limit"), [(77.0, False), (78.0, True)])
    def test_at_the_limit(self, reserved: float, at_limit: bool) -> None:
        assert read_curve([sample(0, 60, reserved)], PROBLEM).at_limit is at_limit

    def test_what_is_refused(self) -> None:
        assert code_of([]) == (("observed",), "empty")
        assert code_of([sample(0, None)]) == (("observed",), "nothing_observed")
        assert code_of([sample(0, 0.0)]) == (("observed",), "nothing_observed")
        assert code_of([sample(1, 1), sample(0, 1)]) == (("observed", 1, "seconds"), "not_rising")
        assert code_of([sample(0, 20, 19)]) == (("observed", 0, "allocated_gib"), "above_reserved")
        assert code_of([sample(0, 20, None, 81)]) == (("observed", 0, "device_gib"), "above_device_memory")


def figures() -> dict[str, float]:
    memory = estimate_memory(PROBLEM, JOB, all_stages(PROBLEM.model, JOB))
    fullest = memory.fullest[0]
    return {
        "allocated": float(memory.peak_allocated_bytes[fullest]),
        "reserved": float(memory.peak_reserved_bytes[fullest]),
        "device": float(memory.peak_bytes[fullest]),
        "required": float(memory.most_required_bytes[0]),
    }


def seen(**peaks: float | None) -> Observation:
    none: dict[str, Any] = {"allocated": None, "reserved": None, "device": None}
    return Observation(**(none | peaks), growth_bytes_per_s=0.0, at_limit=False)


class TestCorrections:
    def test_an_observation_equal_to_the_prediction_changes_nothing_but_the_certainty(self) -> None:
        predicted = figures()
        required = predicted.pop("required")
        corrections = observe(PROBLEM, JOB, seen(**predicted), None)
        assert (corrections.required, corrections.allocated, corrections.reserved, corrections.device) == (1, 1, 1, 1)
        table = resolved(PROBLEM, *({**megatron(2, 1), "micro_batch_size": size} for size in (1, 2, 4)))
        plain = score(PROBLEM, table, memory_confidence=0.9)
        found = score(PROBLEM, table, memory_confidence=0.9, corrections=corrections)
        for name in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_bytes", "required_bytes"):
            np.testing.assert_array_equal(getattr(found.memory, name), getattr(plain.memory, name))
        np.testing.assert_array_equal(found.step_seconds, plain.step_seconds)
        deviations = unseen_deviation(found.fit.error)
        assert deviations[0] == pytest.approx(REPEATED_DEVIATION)
        assert (np.diff(deviations) >= 0).all(), "less certain, the more memory differs"
        assert (
            deviations <= np.hypot(np.sqrt(2) * unseen_deviation(plain.fit.error), REPEATED_DEVIATION) + 1e-12
        ).all()
        assert required == plain.required_bytes[0]

    def test_allocated_decides_what_must_fit(self) -> None:
        predicted = figures()
        corrections = observe(PROBLEM, JOB, seen(allocated=0.9 * predicted["allocated"], device=70 * GIB), None)
        beside = predicted["required"] - predicted["allocated"]
        assert corrections.required == pytest.approx((0.9 * predicted["allocated"] + beside) / predicted["required"])
        assert corrections.reserved == corrections.device == pytest.approx(70 * GIB / predicted["device"])

    @pytest.mark.parametrize("name", ["reserved", "device"])
    def test_without_it_the_nearest_figure_does(self, name: str) -> None:
        corrections = observe(PROBLEM, JOB, seen(**{name: 0.8 * figures()[name]}), None)
        found = (corrections.required, corrections.allocated, corrections.reserved, corrections.device)
        assert found == pytest.approx((0.8, 0.8, 0.8, 0.8))

    def test_a_job_that_runs_fits(self) -> None:
        corrections = observe(PROBLEM, JOB, seen(allocated=2 * figures()["allocated"]), None)
        required = min(2.0 * figures()["required"], PROBLEM.cluster.capacity_bytes)
        assert corrections.required * figures()["required"] <= required
