"""The step time of steady training, from the intervals that a log reports."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

WARM_UP_SHARE: Final = 10
"""One tenth of the intervals, and the first one always, are warm-up: kernels are chosen and compiled, the caching
allocator grows, communicators are set up, data loaders fill their queues. The first interval of a log costs up to 20 ×
a later one; a second slow one is common with torch.compile, and the median bears it."""


def steady_step_seconds(intervals: Sequence[float]) -> tuple[float | None, str | None]:
    """The median without warm-up, and the rule in words; no time where only warm-up was timed.

    `intervals`: seconds of a step, of each interval that was timed, in their order.

    A log whose first interval does not hold the run's first step has no warm-up of that kind, but the same rule.
    """
    if not intervals:
        return None, None
    warm_up = max(1, len(intervals) // WARM_UP_SHARE)
    steady = intervals[warm_up:]
    if not steady:
        return None, "only the first interval was timed, which is warm-up: no step_seconds"
    rule = f"step_seconds is the median of {len(steady)} timed interval(s), without the first {warm_up} (warm-up)"
    return median(steady), rule
