"""The stored coefficients against what the fit may move."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest

from benchmarks.fit_ranges import RANGES


def stored(path: str) -> Any:
    value: Any = tomllib.loads(resources.files("cost_models.time").joinpath("coefficients.toml").read_text())
    for name in path.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize("path", RANGES)
def test_fitted_values_lie_in_the_ranges_that_have_a_source(path: str) -> None:
    bounds = RANGES[path]
    assert bounds.low * 0.999 <= stored(path) <= bounds.high * 1.001


def test_positions_run_over_the_whole_range() -> None:
    for bounds in RANGES.values():
        assert bounds.at(0.0) == pytest.approx(bounds.low)
        assert bounds.at(1.0) == pytest.approx(bounds.high)
