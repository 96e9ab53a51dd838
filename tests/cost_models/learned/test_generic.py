"""What others' runs teach about a family that is not among them: something only where it helps every family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.learned import training_runs
from cost_models.learned.generic import evenly, fit_generic
from cost_models.learned.rows import MemoryRows
from tests.cost_models.learned.learned_runs import many


def families(factor_of: Any) -> MemoryRows:
    records = [
        run
        for number in range(5)
        for run in many(
            [factor_of(number, index) for index in range(24)], cluster=f"c{number}", family=f"f{number}", logged=False
        )
    ]
    return training_runs(records).memory


def test_what_all_families_share_is_learned_and_bounded() -> None:
    rows = families(lambda number, index: 1.2 if index % 4 < 2 else 1.4)  # by micro-batch
    fitted = fit_generic(rows, rows.log_ratio)
    assert fitted.generic is not None
    assert fitted.generic.share == 1.0
    predicted = np.exp(fitted.generic.predict(rows.features)[:, 0])
    assert np.median(np.abs(predicted / np.exp(rows.log_ratio) - 1)) < 0.05
    assert predicted.min() >= 1.2 - 1e-9
    assert predicted.max() <= 1.4 + 1e-9


def test_what_families_do_not_share_is_not_learned() -> None:
    rows = families(lambda number, index: (0.7, 1.0, 1.4, 0.8, 1.3)[number])
    fitted = fit_generic(rows, rows.log_ratio)
    assert fitted.generic is None
    assert (fitted.left_out == 0).all()


def test_rows_are_drawn_evenly_from_each_group() -> None:
    chosen = evenly(np.array([0] * 10 + [1] * 2), 3)
    assert chosen.tolist() == [0, 4, 9, 10, 11]


def test_too_few_families_teach_nothing_about_others() -> None:
    rows = training_runs(many([1.3] * 24, family="one", logged=False)).memory
    assert fit_generic(rows, rows.log_ratio).generic is None
    assert fit_generic(rows, rows.log_ratio).left_out == pytest.approx(0)
