"""What all runs together say about runs of a family that none of them is from: gradient boosting, strongly shrunk.

The formulas are good enough by now that a correction learned on others' runs makes many an unseen family worse. How
much of it is used, from none to all, is chosen by leaving whole families out: the largest share at which no family of
some size is worse off than with the formulas alone, and the families together are better off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from cost_models.corrections import STATISTICS
from cost_models.learned.features import FEATURES
from cost_models.learned.folds import evenly, folds
from cost_models.learned.rows import MemoryRows
from cost_models.strategy import FloatColumn, IntColumn

SHARES: Final = (1.0, 0.75, 0.5, 0.25)
"""Of the learned correction, tried from the largest."""
MOST_ROWS_OF_FAMILY: Final = 60
"""Of each family, drawn evenly over its rows: a sweep of one setting outweighs no other family."""
MOST_FOLDS: Final = 6
"""Families are left out together beyond so many."""
FEWEST_ROWS: Final = 20
"""Of a family that is judged."""
FEWEST_FAMILIES: Final = 3
_SEED: Final = 0
_TREES: Final = {
    "loss": "squared_error",
    "max_iter": 15,
    "max_leaf_nodes": 8,
    "max_bins": 63,
    "min_samples_leaf": 15,
    "learning_rate": 0.2,
    "l2_regularization": 5.0,
    "early_stopping": False,
    "random_state": _SEED,
}
"""Few and shallow: each prediction is part of a request."""


@dataclass(frozen=True)
class Generic:
    """A share of what the trees say."""

    trees: HistGradientBoostingRegressor
    share: float
    least: float
    """Of what was seen."""
    most: float

    def predict(self, features: FloatColumn) -> FloatColumn:
        """(n, 3) log corrections by STATISTICS."""
        kinds = len(STATISTICS)
        # One call for all of them: each costs milliseconds before its first row.
        asked = _with_statistic(np.tile(features, (kinds, 1)), np.repeat(np.arange(kinds), len(features)))
        answer = np.clip(self.trees.predict(asked), self.least, self.most).reshape(kinds, len(features))
        columns: FloatColumn = self.share * answer.T
        return columns


@dataclass(frozen=True)
class GenericFit:
    """The correction to serve, and what it says of each row without the row's family."""

    generic: Generic | None
    """None: the formulas are better alone."""
    left_out: FloatColumn
    """(m,)."""


def fit_generic(rows: MemoryRows, log_ratio: FloatColumn) -> GenericFit:
    """Fit the trees, and choose the share of them that is used."""
    family = rows.origin.family
    nothing = GenericFit(None, np.zeros(len(rows)))
    kept = evenly(family, MOST_ROWS_OF_FAMILY)
    if len(np.unique(family)) < FEWEST_FAMILIES:
        return nothing
    left_out = np.zeros(len(rows))
    fold = folds(family, MOST_FOLDS)
    for number in range(int(fold.max()) + 1):
        fitted = kept[fold[kept] != number]
        trees = _fit(rows, log_ratio, fitted)
        at = fold == number
        predicted = trees.predict(_with_statistic(rows.features[at], rows.statistic[at]))
        left_out[at] = np.clip(predicted, log_ratio[fitted].min(), log_ratio[fitted].max())
    for share in SHARES:
        if _helps(family, log_ratio, share * left_out):
            seen = log_ratio[kept]
            generic = Generic(_fit(rows, log_ratio, kept), share, float(seen.min()), float(seen.max()))
            return GenericFit(generic, share * left_out)
    return nothing


def _fit(rows: MemoryRows, log_ratio: FloatColumn, chosen: IntColumn) -> HistGradientBoostingRegressor:
    trees = HistGradientBoostingRegressor(**_TREES)
    # One thread: so few rows are fitted faster by one, and a worker has neighbours.
    with threadpool_limits(limits=1):
        trees.fit(_with_statistic(rows.features[chosen], rows.statistic[chosen]), log_ratio[chosen])
    return trees


def _with_statistic(features: FloatColumn, statistic: IntColumn) -> FloatColumn:
    both = np.empty((len(features), len(FEATURES) + 1))
    both[:, :-1] = features
    both[:, -1] = statistic
    return both


def _helps(family: IntColumn, log_ratio: FloatColumn, correction: FloatColumn) -> bool:
    """Whether no family of FEWEST_ROWS is worse off and their mean is better off, by median errors."""
    ratios = []
    for number in np.unique(family):
        at = family == number
        if at.sum() >= FEWEST_ROWS:
            alone = float(np.median(np.abs(np.expm1(-log_ratio[at]))))
            corrected = float(np.median(np.abs(np.expm1(correction[at] - log_ratio[at]))))
            ratios.append(corrected / max(alone, 1e-6))
    return len(ratios) >= FEWEST_FAMILIES and max(ratios) <= 1.0 and float(np.mean(ratios)) < 1.0
