"""The choice among what fits: never a larger micro-batch where more is observed, and the least speed lost for it."""

from __future__ import annotations

from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.safe_choice import choose

CANDIDATES = st.lists(
    st.tuples(st.floats(0.2, 4.0), st.floats(-3.0, 3.0), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=12
)
RATIOS = st.lists(st.floats(0.1, 4.5), min_size=2, max_size=8)


def columns(candidates: list[tuple[float, float, int]]) -> tuple[Any, Any, Any]:
    thresholds, worth, sizes = zip(*candidates, strict=True)
    return np.array(thresholds), np.array(worth), np.array(sizes, dtype=np.int64)


@given(CANDIDATES, RATIOS, st.floats(0.01, 0.5))
def test_what_is_chosen_fits_and_falls(
    candidates: list[tuple[float, float, int]], ratios: list[float], deviation: float
) -> None:
    thresholds, worth, sizes = columns(candidates)
    chosen_sizes = []
    for ratio in sorted(ratios):
        chosen = choose(thresholds, worth, sizes, ratio=ratio, deviation=deviation)
        if chosen is None:
            assert not (thresholds >= ratio).any()
            continue
        assert thresholds[chosen] >= ratio
        same = (sizes == sizes[chosen]) & (thresholds >= ratio)
        assert worth[chosen] == worth[same].max(), "the fastest of its micro-batch"
        chosen_sizes.append(int(sizes[chosen]))
    assert chosen_sizes == sorted(chosen_sizes, reverse=True)


@given(
    st.lists(st.tuples(st.floats(0.2, 4.0), st.floats(-3.0, 3.0), st.sampled_from([1, 2, 4])), min_size=1, max_size=5)
)
def test_loses_least(candidates: list[tuple[float, float, int]]) -> None:
    """Against every policy that falls, by brute force."""
    thresholds, worth, sizes = columns(candidates)
    limits = np.unique(thresholds)
    normal = NormalDist(0.0, 0.3)
    weights = np.diff([0.0, *(normal.cdf(float(np.log(limit))) for limit in limits)]) + 1e-9

    def value(interval: int, size: int) -> float:
        fits = (sizes == size) & (thresholds >= limits[interval])
        return float(worth[fits].max()) if fits.any() else -1e12

    def total(policy: Any) -> float:
        return sum(
            weight * value(interval, size) for interval, (weight, size) in enumerate(zip(weights, policy, strict=True))
        )

    falling = [
        p for p in product(sorted(set(sizes.tolist())), repeat=len(limits)) if list(p) == sorted(p, reverse=True)
    ]
    chosen = [choose(thresholds, worth, sizes, ratio=float(limit), deviation=0.3) for limit in limits]
    assert total([int(sizes[index]) for index in chosen if index is not None]) == pytest.approx(
        max(total(policy) for policy in falling)
    )


def test_gives_up_a_faster_larger_micro_batch_only_where_it_is_unlikely() -> None:
    # Micro-batch 2 without checkpointing fits up to 0.9; then micro-batch 4 with it is faster than micro-batch 1.
    thresholds, worth, sizes = columns([(0.9, 3.0, 2), (1.5, 2.0, 4), (2.0, 1.0, 1)])
    assert choose(thresholds, worth, sizes, ratio=1.0, deviation=0.05) == 1
    assert choose(thresholds, worth, sizes, ratio=0.5, deviation=0.05) == 1, "so that it never grows"
    early = columns([(1.2, 3.0, 2), (1.5, 2.0, 4), (2.0, 1.0, 1)])
    assert choose(*early, ratio=1.0, deviation=0.05) == 0
    assert choose(*early, ratio=1.3, deviation=0.05) == 2


def test_of_equal_ones_the_first() -> None:
    thresholds, worth, sizes = columns([(1.0, 1.0, 2), (1.0, 1.0, 2)])
    assert choose(thresholds, worth, sizes, ratio=0.5, deviation=0.1) == 0
