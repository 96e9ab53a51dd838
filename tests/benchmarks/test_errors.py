"""Errors of groups of runs, by the definitions of the acceptance scorer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.errors import errors_of, quantile, spearman
from benchmarks.outcomes import Outcome


def run(strategy: str, seconds: float | None, *, fits: bool = True, **measured: Any) -> Outcome:
    return Outcome(
        key=strategy,
        source="s",
        family="f",
        gpu="g",
        framework="ddp",
        problem="p",
        strategy=strategy,
        measured=measured,
        violations=() if seconds else ("heads_not_divisible",),
        fits=fits,
        step_seconds=seconds,
        memory={"peak_allocated_gib": 9.0, "peak_reserved_gib": 11.0, "peak_device_gib": 12.0} if seconds else {},
    )


def test_time_and_memory() -> None:
    errors = errors_of(
        [
            run("a", 1.1, step_seconds=1.0, peak_allocated_gib=10.0, peak_reserved_gib=10.0),
            run("b", 0.8, step_seconds=1.0, peak_device_gib=12.0),
            run("c", None, step_seconds=1.0),
        ]
    )
    assert (errors.runs, errors.refused, errors.times, errors.memories, errors.ran) == (3, 1, 2, 3, 2)
    assert errors.time_median == pytest.approx(0.15)
    assert errors.time_p90 == pytest.approx(0.2)
    assert errors.time_bias == pytest.approx(0.95)
    assert errors.memory_median == pytest.approx(0.1)
    assert math.isnan(errors.spearman)


def test_order_within_a_set_of_five() -> None:
    predicted, measured = [1.0, 2.0, 3.0, 4.0, 5.0], [2.2, 2.0, 3.0, 4.0, 5.0]
    runs = [run(str(i), p, step_seconds=m) for i, (p, m) in enumerate(zip(predicted, measured, strict=True))]
    errors = errors_of(runs)
    assert errors.sets == 1
    assert errors.spearman == pytest.approx(0.9)
    assert errors.regret == pytest.approx(0.1)
    assert errors_of(runs[:4]).sets == 0


def test_out_of_memory_and_unfit() -> None:
    errors = errors_of(
        [run("a", 1.0, out_of_memory=True), run("b", 1.0, fits=False, out_of_memory=True), run("c", 1.0, fits=False)]
    )
    assert (errors.ran_out_missed, errors.ran_out, errors.false_unfit, errors.ran) == (1, 2, 1, 1)


def test_ties_share_a_rank() -> None:
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)
    assert spearman([1, 2, 2, 3], [3, 2, 2, 1]) == pytest.approx(-1.0)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_quantiles_are_values() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.9) == 4.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    assert math.isnan(quantile([], 0.9))
