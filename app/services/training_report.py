"""What lists show of a training's report (`cost_models.learned.evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

GROUPINGS: Final = ("model_shape", "source")
OF_GROUPING: Final = (
    "groups",
    "rows",
    "median_error",
    "analytical_median_error",
    "under_rate",
    "overshoot",
    "by_group",
)
OF_GROUP: Final = ("rows", "median_error", "analytical_median_error", "under_rate", "overshoot")


def unseen_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Errors and coverage on model shapes and sources that the model had not seen; null where there are too few."""
    return {grouping: _figures(report["candidate"][grouping]) for grouping in GROUPINGS}


def _figures(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    by_group = {name: {key: group[key] for key in OF_GROUP} for name, group in found["by_group"].items()}
    return {key: found[key] for key in OF_GROUPING} | {"by_group": by_group}
