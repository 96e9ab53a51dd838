"""What a list shows of a training's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unseen_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Errors and coverage on model shapes and sources that the model had not seen."""
    return {name: report[name] for name in ("unseen_shapes", "unseen_sources") if name in report}
