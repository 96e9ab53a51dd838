"""Factors of step time from made-up runs of one framework on several clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cost_models.learned.rows import Origin, TimeRows
from cost_models.learned.step_time import fit_step_time

NOW = 1.8e9
AS_THE_FORMULAS = [-0.05, -0.02, 0.0, 0.01, 0.06]
"""log(measured / predicted): a median of nothing, within its uncertainty."""
SLOWER = [0.25, 0.28, 0.30, 0.31, 0.36]


def rows(*clusters: Sequence[float]) -> TimeRows:
    """Logged now, one list a cluster."""
    cluster = np.repeat(np.arange(len(clusters)), [len(values) for values in clusters])
    nothing = np.zeros_like(cluster)
    origin = Origin(
        request=np.arange(len(cluster)),
        framework=nothing,
        cluster=cluster,
        family=cluster,
        shape=nothing,
        logged=np.ones(len(cluster), dtype=np.bool_),
        at_seconds=np.full(len(cluster), NOW),
    )
    return TimeRows(origin, np.concatenate([np.asarray(values) for values in clusters]))


def test_a_median_within_its_uncertainty_moves_nothing() -> None:
    found = fit_step_time(rows(AS_THE_FORMULAS, SLOWER, AS_THE_FORMULAS[::-1]), ("a", "b", "c"), now_seconds=NOW)
    assert found.by_group["a", 0].log_factor == 0
    # Which is no certainty that nothing is off.
    assert 0.01 < found.by_group["a", 0].deviation < 0.05
    assert found.by_group["a", 0].runs == 5


def test_a_cluster_far_from_the_formulas_is_believed() -> None:
    found = fit_step_time(rows(AS_THE_FORMULAS, SLOWER, AS_THE_FORMULAS), ("a", "b", "c"), now_seconds=NOW)
    noise = found.within**2 * np.pi / 2 / 5
    # The spread of the cluster itself and the usual one are the same here.
    share = (1 - noise / 0.3**2) * found.between**2 / (found.between**2 + noise)
    assert found.by_group["b", 0].log_factor == pytest.approx(share * 0.3, rel=0.02)
    assert found.by_group["b", 0].log_factor > 0.28


def test_one_run_that_is_far_off_is_not() -> None:
    one, many = (fit_step_time(rows([0.3] * count), ("a",), now_seconds=NOW).by_group["a", 0] for count in (1, 20))
    assert 0 < one.log_factor < 0.8 * many.log_factor < 0.3
    assert one.deviation > many.deviation


def test_runs_of_others_are_nobodys_factor() -> None:
    published = rows(SLOWER)
    origin = Origin(**(vars(published.origin) | {"logged": np.zeros(5, dtype=np.bool_)}))
    assert not fit_step_time(TimeRows(origin, published.log_ratio), ("a",), now_seconds=NOW).by_group
