"""What a model answers: corrections that follow the runs, stay bounded, and mean nothing where nothing was learned."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.corrections import MemoryCorrection
from cost_models.learned import LearnedCorrections, dump, load, train, training_runs
from cost_models.learned.peak_memory import FEW_OWN
from cost_models.memory import estimate_memory
from cost_models.memory.error import NormalError
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.results import MemoryEstimate
from cost_models.run_records import record_problem, record_strategy
from cost_models.stages import all_stages
from cost_models.strategy import StrategyTable, partial_columns
from tests.cost_models.learned.learned_runs import many, record

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def trained(records: list[dict[str, Any]]) -> LearnedCorrections:
    return train(training_runs(records), version=3, now=NOW)


def asked(found: dict[str, Any], **strategy: Any) -> tuple[Problem, StrategyTable, MemoryEstimate]:
    problem = record_problem(found)
    table = resolve_strategies(problem, partial_columns([record_strategy(found) | strategy])).table
    return problem, table, estimate_memory(problem, table, all_stages(problem.model, table))


def correction(model: LearnedCorrections, found: dict[str, Any], **strategy: Any) -> MemoryCorrection:
    return model.memory(*asked(found, **strategy))


class TestNothingLearned:
    def test_formulas_stand_with_their_own_error(self) -> None:
        answer = correction(trained([]), record())
        assert (answer.allocated, answer.reserved, answer.device, answer.required) == (1, 1, 1, 1)
        assert answer.basis.tolist() == [-1]
        assert isinstance(answer.error, NormalError)

    def test_time_is_what_it_was(self) -> None:
        model = trained([])
        problem, table, _ = asked(record())
        time = model.step_time(problem, table)
        assert (time.factor[0], time.runs[0]) == (1, 0)


class TestOwnRuns:
    def test_many_runs_that_agree_are_believed(self) -> None:
        answer = correction(trained(many([1.3] * 16)), record())
        assert answer.allocated[0] == pytest.approx(1.3, rel=0.01)

    def test_the_more_runs_the_nearer(self) -> None:
        far = record(sequence_length=8192, micro_batch_size=1, attention="eager")
        answers = [correction(trained(many([1.3] * n)), far).allocated[0] for n in (1, 4, 16)]
        assert 1 <= answers[0] <= answers[1] <= answers[2] < 1.3

    def test_one_run_moves_its_like_more_than_others(self) -> None:
        model = trained([record(1.3)])
        assert correction(model, record()).allocated[0] > correction(model, record(attention="eager")).allocated[0] > 1

    def test_runs_of_another_cluster_or_framework_are_not_ones_own(self) -> None:
        model = trained(many([1.3] * 16))
        assert correction(model, record(cluster="theirs")).allocated[0] == 1
        assert correction(model, record(framework="deepspeed")).allocated[0] == 1

    def test_published_runs_are_not_ones_own(self) -> None:
        assert correction(trained(many([1.3] * 16, logged=False)), record()).allocated[0] == 1

    def test_one_outlier_spoils_no_neighbour(self) -> None:
        factors = [1.1] * 15
        clean = correction(trained(many(factors)), record()).allocated[0]
        spoilt = correction(trained(many([*factors, 2.5])), record()).allocated[0]
        assert spoilt == pytest.approx(clean, rel=0.03)

    def test_corrections_stay_within_what_was_seen(self) -> None:
        model = trained(many(list(np.linspace(1.0, 1.2, 16))))
        for sequence_length in (512, 4096, 32768):
            for micro_batch_size in (1, 16):
                answer = correction(model, record(sequence_length=sequence_length), micro_batch_size=micro_batch_size)
                assert 1 <= answer.allocated[0] <= 1.2 + 1e-9

    def test_what_is_not_allocated_is_not_corrected(self) -> None:
        problem, table, memory = asked(record())
        answer = trained(many([1.3] * 16)).memory(problem, table, memory)
        allocated, required = memory.peak_allocated_bytes[0], memory.required_bytes[0]
        beside = required - allocated
        assert answer.required[0] * required == pytest.approx(answer.allocated[0] * allocated + beside)


class TestOutOfMemory:
    def test_it_raises_what_it_contradicts(self) -> None:
        ran = many([1.0] * 8)
        with_it = [*ran, record(1.2, figure="out_of_memory", micro_batch_size=16)]
        asked_for = record(micro_batch_size=16)
        before = correction(trained(ran), asked_for).allocated[0]
        after = correction(trained(with_it), asked_for).allocated[0]
        assert before == pytest.approx(1, abs=0.01)
        assert after > 1.15

    def test_it_lowers_nothing_that_it_agrees_with(self) -> None:
        ran = many([1.3] * 16)
        with_it = [*ran, record(1.1, figure="out_of_memory", micro_batch_size=16)]
        for found in (record(), record(micro_batch_size=16), record(sequence_length=4096)):
            before = correction(trained(ran), found).allocated[0]
            assert correction(trained(with_it), found).allocated[0] == pytest.approx(before)

    def test_alone_it_is_enough(self) -> None:
        model = trained([record(1.2, figure="out_of_memory")])
        assert correction(model, record()).allocated[0] > 1.1


class TestBound:
    def test_few_runs_have_no_basis_of_their_own(self) -> None:
        assert correction(trained(many([1.1] * (FEW_OWN - 1))), record()).basis.tolist() == [-1]

    def test_own_runs_are_named(self) -> None:
        answer = correction(trained(many([1.1] * 24)), record())
        assert answer.bases[answer.basis[0]] == "what 24 runs logged on this cluster (mine) with megatron-lm missed by"

    def test_runs_that_scatter_need_a_wider_bound(self) -> None:
        rng = np.random.default_rng(0)
        bounds = [
            correction(trained(many(np.exp(spread * rng.normal(size=40)))), record()).error.bound(0.95)[0]
            for spread in (0.02, 0.2)
        ]
        assert 1 < bounds[0] < 1.1 < bounds[1]

    def test_the_range_holds_for_every_answer(self) -> None:
        model = trained(many(list(np.linspace(0.9, 1.4, 24))))
        for sequence_length in (512, 2048, 16384):
            problem, table, memory = asked(record(sequence_length=sequence_length))
            for confidence in (0.5, 0.9, 0.99):
                within = model.requirement_range(problem, table, confidence)
                answer = model.memory(problem, table, memory)
                factor = answer.required * answer.error.bound(confidence)
                assert within.least[0] <= factor[0] <= within.most[0]


class TestStatistics:
    @settings(max_examples=15, deadline=None)
    @given(st.tuples(*[st.floats(0.6, 1.6)] * 3))
    def test_allocated_reserved_and_device_keep_their_order(self, factors: tuple[float, float, float]) -> None:
        figures = ("peak_allocated_gib", "peak_reserved_gib", "peak_device_gib")
        model = trained([run for k, name in zip(factors, figures, strict=True) for run in many([k] * 6, figure=name)])
        problem, table, memory = asked(record())
        answer = model.memory(problem, table, memory)
        corrected = (
            memory.peak_allocated_bytes * answer.allocated,
            memory.peak_reserved_bytes * answer.reserved,
            memory.peak_bytes * answer.device,
        )
        assert corrected[0] <= corrected[1] * (1 + 1e-12)
        assert corrected[1] <= corrected[2] * (1 + 1e-12)


class TestStepTime:
    def test_a_factor_is_the_median_shrunk(self) -> None:
        model = trained(many([1.5] * 20, figure="step_seconds"))
        problem, table, _ = asked(record())
        time = model.step_time(problem, table)
        assert 1.4 < time.factor[0] < 1.5
        assert time.runs[0] == 20
        assert 0 < time.deviation[0] < 0.1

    def test_few_runs_are_shrunk_more(self) -> None:
        problem, table, _ = asked(record())
        factors = [
            trained(many([1.5] * n, figure="step_seconds")).step_time(problem, table).factor[0] for n in (1, 5, 20)
        ]
        assert 1 < factors[0] < factors[1] < factors[2] < 1.5

    def test_one_slow_run_is_not_believed(self) -> None:
        problem, table, _ = asked(record())
        model = trained(many([1.2] * 10 + [20.0], figure="step_seconds"))
        assert model.step_time(problem, table).factor[0] == pytest.approx(1.2, rel=0.05)

    def test_published_times_are_nobodys_own(self) -> None:
        problem, table, _ = asked(record())
        model = trained(many([1.5] * 20, figure="step_seconds", logged=False))
        assert model.step_time(problem, table).factor[0] == 1


def test_the_same_runs_give_the_same_model() -> None:
    records = many(list(np.linspace(0.9, 1.4, 24)))
    one, other = (correction(trained(records), record(sequence_length=3072)) for _ in range(2))
    assert (one.allocated, one.error.bound(0.95)) == (other.allocated, other.error.bound(0.95))


def test_a_model_that_was_kept_answers_the_same() -> None:
    model = trained(many(list(np.linspace(0.9, 1.4, 24))) + many([1.2] * 12, figure="step_seconds"))
    again = load(dump(model), version=3)
    problem, table, memory = asked(record(sequence_length=3072))
    assert again.memory(problem, table, memory).allocated == model.memory(problem, table, memory).allocated
    assert again.step_time(problem, table).factor == model.step_time(problem, table).factor
    assert again.version == 3
