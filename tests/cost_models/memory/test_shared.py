"""Distinct strategies, and the way back to all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cost_models.memory.distinct import distinct
from cost_models.memory.shared import share
from cost_models.stages import all_stages
from tests.cost_models.problems import h100, make_problem, megatron, resolved

VALUES = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 3), st.integers(0, 2**40)), min_size=1, max_size=30)


@given(VALUES)
def test_every_row_finds_its_combination_even_where_keys_would_overflow(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    first, which = distinct(*columns)
    assert len(first) == len(set(rows))
    assert [rows[index] for index in first[which]] == rows


def test_fractions_are_told_apart() -> None:
    first, which = distinct(np.array([1, 1, 1]), np.array([0.5, 0.25, 0.5]))
    assert len(first) == 2
    assert which[0] == which[2] != which[1]


def test_stages_of_equal_strategies_are_shared() -> None:
    problem = make_problem("llama-3-8b", h100(2))
    strategies = [megatron(1, pipeline, micro_batch_size=size) for pipeline in (4, 1, 2) for size in (1, 2)]
    table = resolved(problem, *strategies)
    stages = all_stages(problem.model, table)
    shared = share(table, stages, ("pipeline_parallel_size", "layers_per_stage"))
    assert len(shared.table) == 3
    assert len(shared.stages) == 4 + 1 + 2
    np.testing.assert_array_equal(shared.stages.stage[shared.rows], stages.stage)
    np.testing.assert_array_equal(shared.stages.layers[shared.rows], stages.layers)
    np.testing.assert_array_equal(
        shared.on_strategies(shared.table.pipeline_parallel_size), table.pipeline_parallel_size
    )
