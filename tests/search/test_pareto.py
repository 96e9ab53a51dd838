import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from search.pareto import front

POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)


@given(POINTS)
def test_front_is_what_pairwise_comparison_finds(points: list[tuple[int, int]]) -> None:
    first = np.array([p[0] for p in points], dtype=np.float64)
    second = np.array([p[1] for p in points], dtype=np.float64)
    expected = [
        not any(
            (a <= x and b <= y and (a < x or b < y)) or ((a, b) == (x, y) and other < index)
            for other, (a, b) in enumerate(points)
        )
        for index, (x, y) in enumerate(points)
    ]
    assert front(first, second).tolist() == expected


def test_front_of_three_points() -> None:
    assert front(np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 3.0])).tolist() == [True, True, False]
