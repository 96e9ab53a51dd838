"""Distinct rows against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cost_models.distinct import distinct_rows

VALUES = st.sampled_from([0, 1, 2, 7, -3, 10**6, 10**12, -(2**40)])


@given(st.lists(st.tuples(VALUES, st.booleans(), VALUES, st.integers(0, 50), VALUES), min_size=1, max_size=40))
def test_combinations_are_numbered_and_stand_for_themselves(rows: list[tuple[int, bool, int, int, int]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    representatives, number = distinct_rows(columns)
    assert len(representatives) == len(set(rows)) == number.max() + 1
    for row, index in zip(rows, number, strict=True):
        assert rows[representatives[index]] == row
    np.testing.assert_array_equal(columns[0], np.array([row[0] for row in rows]))


def test_fractions_are_told_apart() -> None:
    representatives, number = distinct_rows([np.array([1, 1, 1]), np.array([0.5, 0.25, 0.5])])
    assert len(representatives) == 2
    assert number[0] == number[2] != number[1]


def test_no_rows_are_no_combinations() -> None:
    representatives, number = distinct_rows([np.array([], dtype=np.int64)])
    assert len(representatives) == len(number) == 0
