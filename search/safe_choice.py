"""Which of the strategies that fit to take, so that more memory observed never means a larger micro-batch.

Every candidate fits up to a threshold: the ratio of observed to predicted memory at which its bound meets the capacity.
The fastest of those that fit is not monotone: where micro-batch 2 without checkpointing no longer fits, micro-batch 4
with it may be the fastest left. So the choice is a policy over all ratios, in which the micro-batch falls as the ratio
rises, and that loses the least speed against the fastest, weighted by how likely each ratio is before anything is
observed (dynamic programming over the thresholds).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

_NEVER: Final = -1e12
"""Worth of a micro-batch of which nothing fits."""
_LEAST_WEIGHT: Final = 1e-9
"""Of ratios that are next to impossible: still something, so that what fits is chosen there too."""


def choose(
    thresholds: FloatColumn, worth: FloatColumn, micro_batch: IntColumn, *, ratio: float, deviation: float
) -> int | None:
    """Index of the candidate to take at the observed ratio; None: nothing fits.

    thresholds (n,): largest ratio at which a candidate fits. worth (n,): logarithm of its speed. deviation: of the
    logarithm of the ratio, before anything is observed.
    """
    if not (thresholds >= ratio).any():
        return None
    front = np.flatnonzero(_undominated(thresholds, worth, micro_batch))
    front = front[np.argsort(thresholds[front], kind="stable")]
    limits, sizes = np.unique(thresholds[front]), np.unique(micro_batch[front])
    best = np.full((len(limits), len(sizes)), -1, dtype=np.int64)
    value = np.full((len(limits), len(sizes)), _NEVER)
    for size in range(len(sizes)):
        # On the front of one size the speed falls as the threshold rises: the first that still fits is its fastest.
        own = front[micro_batch[front] == sizes[size]]
        first = np.searchsorted(thresholds[own], limits)
        fits = first < len(own)
        best[fits, size] = own[first[fits]]
        value[fits, size] = worth[best[fits, size]]
    return _follow(best, value, limits, ratio, deviation)


def _follow(best: IntColumn, value: FloatColumn, limits: FloatColumn, ratio: float, deviation: float) -> int:
    normal = NormalDist(0.0, deviation)
    below = np.array([normal.cdf(float(np.log(limit))) for limit in limits])
    weights = np.diff(below, prepend=0.0) + _LEAST_WEIGHT
    total = weights[:, None] * value
    for interval in range(len(limits) - 2, -1, -1):
        total[interval] += np.maximum.accumulate(total[interval + 1])
    last = int(np.searchsorted(limits, ratio))
    size = total.shape[1]
    for interval in range(last + 1):
        size = int(np.argmax(total[interval, : size + 1])) if interval else int(np.argmax(total[0]))
    return int(best[last, size])


def _undominated(thresholds: FloatColumn, worth: FloatColumn, micro_batch: IntColumn) -> BoolColumn:
    """(n,) whether no other candidate of the same micro-batch is as fast and fits as long; of equal ones the first."""
    kept = np.zeros(len(worth), dtype=np.bool_)
    order = np.lexsort((np.arange(len(worth)), -worth, -thresholds, micro_batch))
    size, fastest = -1, -np.inf
    for index in order.tolist():
        if micro_batch[index] != size:
            size, fastest = int(micro_batch[index]), -np.inf
        if thresholds[index] > 0 and worth[index] > fastest:
            kept[index] = True
            fastest = float(worth[index])
    return kept
