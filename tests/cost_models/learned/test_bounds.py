"""Bounds against the theory of conformal prediction, and against distributions that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.learned.bounds import LEVELS, group_weights, normal_table, quantile_table
from cost_models.memory.error import NormalError, TabulatedError


def at(table: np.ndarray, level: float) -> float:
    return float(np.interp(level, LEVELS, table))


def test_groups_weigh_the_same_whatever_their_rows() -> None:
    weights = group_weights(np.array([0, 0, 0, 7]))
    assert weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_a_group_of_few_rows_weighs_less() -> None:
    weights = group_weights(np.repeat([0, 1], [20, 60]), 20.0)
    assert weights[:20].sum() == pytest.approx(0.5 / (0.5 + 0.75))


def test_the_bound_covers_what_is_exchangeable_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(1500):
        errors = rng.standard_t(4, 40)
        table = quantile_table(errors[:-1], np.full(39, 1 / 39))
        covered.append([errors[-1] <= at(table, level) for level in (0.5, 0.9, 0.95)])
    assert np.mean(covered, axis=0) == pytest.approx([0.5, 0.9, 0.95], abs=0.025)


def test_the_bound_covers_unseen_groups_of_a_hierarchy() -> None:
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(400):
        group = np.repeat(np.arange(15), 20)
        errors = rng.normal(size=15)[group] + 0.5 * rng.normal(size=300)
        unseen = rng.normal() + 0.5 * rng.normal(size=20)
        covered.append(np.mean(unseen <= at(quantile_table(errors, group_weights(group)), 0.9)))
    assert 0.86 < np.mean(covered) < 0.94


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_quantiles_rise_strictly_and_agree_with_probabilities(errors: list[float]) -> None:
    table = quantile_table(np.array(errors), np.ones(len(errors)))
    assert (np.diff(table) > 0).all()
    error = TabulatedError(LEVELS, table[None], np.zeros(1, dtype=np.int64))
    for confidence in (0.5, 0.9, 0.95):
        assert error.exceedance(np.log(error.bound(confidence)))[0] == pytest.approx(1 - confidence, abs=1e-6)


def test_the_normal_table_is_the_normal_error() -> None:
    stated = NormalError(np.array([0.12]))
    error = TabulatedError(LEVELS, normal_table(0.12)[None], np.zeros(1, dtype=np.int64))
    for confidence in (0.5, 0.9, 0.95):
        assert error.bound(confidence) == pytest.approx(stated.bound(confidence), rel=1e-3)
