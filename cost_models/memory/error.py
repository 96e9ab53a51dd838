"""How far the truth lies from the prediction: distributions of log(measured / predicted), one a row."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Protocol

import numpy as np

from cost_models.strategy import FloatColumn, IntColumn

_NORMAL: Final = NormalDist()
_DEVIATIONS: Final = np.linspace(-8.0, 8.0, 1601)
_PROBABILITIES: Final = np.array([_NORMAL.cdf(float(z)) for z in _DEVIATIONS])


class ErrorDistribution(Protocol):
    """Of n rows."""

    def bound(self, confidence: float) -> FloatColumn:
        """(n,) factor on the prediction that the truth stays below with this probability, strictly in (0, 1)."""
        ...

    def exceedance(self, log_room: FloatColumn) -> FloatColumn:
        """(n,) probability that log(measured / predicted) is above `log_room`, (n,)."""
        ...


@dataclass(frozen=True)
class NormalError:
    """Normal around zero: what the formulas alone are taken to miss by (`Framework.memory_error`)."""

    deviation: FloatColumn
    """(n,) standard deviation."""

    def bound(self, confidence: float) -> FloatColumn:
        """(n,) factor."""
        factor: FloatColumn = np.exp(_NORMAL.inv_cdf(confidence) * self.deviation)
        return factor

    def exceedance(self, log_room: FloatColumn) -> FloatColumn:
        """(n,) probability."""
        probability: FloatColumn = np.interp(-log_room / self.deviation, _DEVIATIONS, _PROBABILITIES)
        return probability


@dataclass(frozen=True)
class TabulatedError:
    """Quantiles of what measured runs showed, by group of rows; linear between, constant beyond the outermost."""

    levels: FloatColumn
    """(k,) probabilities, rising strictly, from 0 to 1 so that the bound and the probability agree."""
    deviations: FloatColumn
    """(g, k) log(measured / predicted) at these levels, each row rising strictly."""
    group: IntColumn
    """(n,) row of `deviations`."""

    def bound(self, confidence: float) -> FloatColumn:
        """(n,) factor."""
        of_group = np.array([np.interp(confidence, self.levels, row) for row in self.deviations])
        factor: FloatColumn = np.exp(of_group)[self.group]
        return factor

    def exceedance(self, log_room: FloatColumn) -> FloatColumn:
        """(n,) probability."""
        probability = np.empty(len(log_room))
        for index, row in enumerate(self.deviations):
            rows = self.group == index
            probability[rows] = 1.0 - np.interp(log_room[rows], row, self.levels)
        return probability
