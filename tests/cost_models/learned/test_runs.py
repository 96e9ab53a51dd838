from __future__ import annotations

import numpy as np
import pytest

from cost_models.learned import runs as priced
from cost_models.learned import training_runs
from tests.cost_models.learned.learned_runs import record


def test_a_run_is_measured_over_analytical_on_the_fullest_stage() -> None:
    runs = training_runs([record(1.25), record(0.8, figure="peak_device_gib", sequence_length=2048)])
    assert np.exp(runs.memory.log_ratio) == pytest.approx([1.25, 0.8])
    assert runs.memory.statistic.tolist() == [0, 2]
    assert len(runs) == 2


def test_runs_of_one_request_are_one_row_with_their_median() -> None:
    runs = training_runs([record(1.0), record(1.1), record(1.5)])
    assert len(runs) == 3
    assert np.exp(runs.memory.log_ratio) == pytest.approx([1.1])


def test_published_and_logged_runs_of_one_request_are_kept_apart() -> None:
    runs = training_runs([record(1.0), record(1.2, logged=False)])
    assert runs.memory.origin.logged.tolist() == [True, False]


def test_what_cannot_be_priced_is_skipped_with_its_reason() -> None:
    broken = record(1.0) | {"key": "broken"}
    broken["strategy"] = broken["strategy"] | {"tensor_parallel_size": 3}
    unknown = record(1.0, layers=9) | {"key": "unknown", "model": {"preset": "no-such-model"}}
    runs = training_runs([record(1.0), broken, unknown])
    assert len(runs) == 1
    assert [skipped.key for skipped in runs.skipped] == ["broken", "unknown"]
    assert "heads_not_divisible" in runs.skipped[0].reason
    assert "no-such-model" in runs.skipped[1].reason


def test_a_run_of_which_nobody_knows_what_decides_is_skipped() -> None:
    guessed = record(1.0) | {"unknown": ["zero_stage", "dropout"]}
    harmless = record(1.0) | {"unknown": ["sequence_parallel"]}
    filled_in = record(1.0, logged=False) | {"unknown": ["zero_stage"]}
    runs = training_runs([record(1.2), guessed, harmless, filled_in])
    assert [skipped.reason for skipped in runs.skipped] == ["unknown, and decisive: zero_stage"]
    assert np.exp(runs.memory.log_ratio) == pytest.approx([1.1, 1.0])


def test_a_stage_that_does_not_exist_is_skipped() -> None:
    run = record(1.0)
    run["measured"]["pipeline_stage"] = 1
    assert "pipeline_stage 1 of 1" in training_runs([run]).skipped[0].reason


def test_a_run_out_of_memory_says_what_allocated_must_have_been() -> None:
    runs = training_runs([record(1.3, figure="out_of_memory")])
    assert runs.memory.censored.tolist() == [True]
    assert np.exp(runs.memory.log_ratio) == pytest.approx([1.3])


def test_step_times_are_measured_over_predicted() -> None:
    runs = training_runs([record(1.5, figure="step_seconds")])
    assert np.exp(runs.time.log_ratio) == pytest.approx([1.5])
    assert len(runs.memory) == 0


def test_known_records_are_known_by_their_place() -> None:
    runs = training_runs([record(1.0), record(1.1), record(1.0, sequence_length=2048)])
    assert runs.known_requests(np.array([False, True, False])).tolist() == [0]
    with pytest.raises(ValueError, match="known has 2 rows"):
        runs.known_requests(np.array([True, False]))


def test_of_too_many_problems_the_latest_of_each_cluster_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priced, "MOST_PROBLEMS", 2)
    days = [f"2026-11-{day:02}T00:00:00+00:00" for day in (5, 20, 25)]
    mine = [record(1.0, sequence_length=512 * (k + 1), started_at=day) for k, day in enumerate(days)]
    runs = training_runs([*mine, record(1.0, cluster="theirs", started_at="2026-11-01T00:00:00+00:00")])
    assert runs.request.tolist() == [-1, -1, 2, 3]
    assert "of 4" in runs.skipped[0].reason


def test_nothing_is_nothing() -> None:
    runs = training_runs([])
    assert (len(runs), len(runs.memory), len(runs.time)) == (0, 0, 0)
