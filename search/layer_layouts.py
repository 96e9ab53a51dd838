"""Balanced layouts of layers beside the frameworks' own, where those leave one stage with clearly more to do.

A framework's default gives every stage as many layers where that divides, or counts the loss as one layer, while the
head of a large vocabulary costs as much as several layers of a small model: the last stage then holds up all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.distinct import distinct_rows
from cost_models.framework import Framework
from cost_models.layouts import (
    balanced_layout,
    busiest_stages,
    default_layout,
    head_cost_in_layers,
    largest_stages,
)
from cost_models.strategy import MISSING, IntColumn

LEAST_GAIN: Final = 0.01
"""Of the busiest stage: below, a second layout is not worth its score."""

LayerLayout = tuple[int, ...]


@dataclass(frozen=True)
class BalancedLayouts:
    """Of n pipelines."""

    layouts: tuple[LayerLayout, ...]
    number: IntColumn
    """(n,) the balanced layout worth a try beside the default one; MISSING: none is."""
    largest: IntColumn
    """(n,) layers of its largest stage."""


def balanced_layouts(
    model: ModelArchitecture, framework: Framework, pipeline: IntColumn, virtual: IntColumn
) -> BalancedLayouts:
    """The balanced layouts of pipelines that would be held up by a stage of their default one."""
    first, which = distinct_rows([pipeline, virtual])
    numbers: dict[LayerLayout, int] = {}
    chosen = []
    for row in first:
        layout = _balanced(model, framework, int(pipeline[row]), int(virtual[row]))
        chosen.append(MISSING if layout is None else numbers.setdefault(layout, len(numbers)))
    layouts, number = tuple(numbers), np.array(chosen, dtype=np.int64)[which]
    largest = np.zeros(len(number), dtype=np.int64)
    rows = np.flatnonzero(number != MISSING)
    if len(rows):
        largest[rows] = largest_stages(layouts, number[rows], pipeline[rows])
    return BalancedLayouts(layouts, number, largest)


def _balanced(model: ModelArchitecture, framework: Framework, pipeline: int, virtual: int) -> LayerLayout | None:
    if pipeline == 1 or pipeline * virtual > model.layers:
        return None
    default = default_layout(
        model, pipeline, virtual, ends_count_as_layers=framework.embedding_and_loss_count_as_layers
    )
    both = (default, balanced_layout(model, pipeline, virtual))
    own, other = busiest_stages(both, np.arange(2), np.full(2, pipeline), head_cost_in_layers(model))
    return both[1] if other < own * (1 - LEAST_GAIN) else None
