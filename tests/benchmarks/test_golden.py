"""The gate: a change of predictions shows, and errors by source may not rise unnoticed."""

from __future__ import annotations

import pytest

from benchmarks.golden import (
    ERRORS,
    PREDICTIONS,
    changed_predictions,
    errors,
    predictions,
    published_outcomes,
    read,
    risen_errors,
)
from benchmarks.outcomes import Outcome

SHOWN = 40
TOLERANCE = 0.005
"""Half a point of per cent."""


@pytest.fixture(scope="module")
def runs() -> list[Outcome]:
    return published_outcomes()


def test_predictions_are_the_golden_ones(runs: list[Outcome]) -> None:
    changed = changed_predictions(read(PREDICTIONS), predictions(runs))
    shown = "\n".join(changed[:SHOWN])
    assert not changed, f"{len(changed)} predictions changed; if they should, `make golden` and commit:\n{shown}"


def test_errors_by_source_do_not_rise(runs: list[Outcome]) -> None:
    risen = risen_errors(read(ERRORS), errors(runs), tolerance=TOLERANCE)
    assert not risen, "errors rose; say why in the commit that changes the golden file:\n" + "\n".join(risen)


def test_a_changed_prediction_is_told_with_its_share() -> None:
    old = {"a/1": {"step_seconds": "2", "fits": "true"}, "a/2": {"step_seconds": "1", "fits": "true"}}
    new = {"a/1": {"step_seconds": "2.1", "fits": "true"}, "a/3": {"step_seconds": "1", "fits": "true"}}
    assert changed_predictions(old, new) == ["a/2: gone", "a/3: new", "a/1: step_seconds 2 -> 2.1 (+5.00%)"]


def test_the_sixth_digit_may_differ() -> None:
    old = {"a/1": {"step_seconds": "1.00000", "fits": "true"}}
    assert changed_predictions(old, {"a/1": {"step_seconds": "1.00001", "fits": "true"}}) == []
    assert changed_predictions(old, {"a/1": {"step_seconds": "1.00001", "fits": "false"}}) == [
        "a/1: fits true -> false"
    ]


def test_only_errors_that_rise_fail() -> None:
    row = {"time_median": "0.0500", "time_p90": "", "memory_median": "0.0200", "memory_p90": "0.0400"}
    old = {"a": row | {"refused": "0", "ran_out_missed": "1", "false_unfit": "0"}}
    better = {"a": old["a"] | {"time_median": "0.0300", "ran_out_missed": "0"}}
    worse = {"a": old["a"] | {"time_median": "0.0560", "false_unfit": "2"}, "b": old["a"]}
    assert risen_errors(old, better, tolerance=0.005) == []
    assert risen_errors(old, worse, tolerance=0.005) == ["a: false_unfit 0 -> 2", "a: time_median 5.0% -> 5.6%"]
