"""What a stage costs for one micro-batch, which stage is the slowest, and how much the others add to the fill.

Priced for the distinct pipelines of a table, see `picked_stages`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, IntColumn
from cost_models.time.ends import EndSeconds
from cost_models.time.layers import LayerSeconds
from cost_models.time.picked_stages import HeldLayers, PickedStages


@dataclass(frozen=True)
class StageSeconds:
    """One micro-batch on one stage; columns (rows,)."""

    forward: FloatColumn
    gradients: FloatColumn
    """Backward without recomputation."""
    weight_gradient: FloatColumn
    """The part of it that needs no other stage."""
    recompute: FloatColumn
    tensor: FloatColumn
    context: FloatColumn
    expert: FloatColumn


@dataclass(frozen=True)
class StageWeights:
    """On one rank of one stage; columns (rows,)."""

    layers: FloatColumn
    dense: FloatColumn
    routed: FloatColumn
    dense_trained: FloatColumn
    routed_trained: FloatColumn
    dense_orthogonal: FloatColumn
    """Muon's seconds on one rank that has all of these matrices."""
    routed_orthogonal: FloatColumn


@dataclass(frozen=True)
class PipelineCosts:
    """Per distinct pipeline, columns (p,)."""

    slowest: StageSeconds
    weights: StageWeights
    """Of the slowest stage."""
    stage: IntColumn
    """Which one it is."""
    others_busy: FloatColumn
    """Sum over all other stages of one micro-batch's time."""
    others_weight_gradient: FloatColumn
    """The part of it that zero-bubble schedules move into the bubble."""


Ends = tuple[EndSeconds, EndSeconds]


def pipeline_costs(problem: Problem, picked: PickedStages, layers: LayerSeconds, ends: Ends) -> PipelineCosts:
    """The slowest stage of each pipeline and the sum of the others."""
    held = picked.held
    busy = _add_ends(held, held.inside(layers.once), ends[0].once, ends[1].once)
    busy += held.inside(layers.repeated) * held.again
    chosen = _first_maximum(busy, picked.start, picked.owner)
    weight_gradient = _with_ends(held, "weight_gradient", layers, ends)
    slowest = held.take(chosen)
    return PipelineCosts(
        slowest=stage_seconds(slowest, layers, ends),
        weights=_weights(problem, slowest, layers, ends),
        stage=slowest.stage,
        others_busy=np.maximum(0.0, picked.total(busy) - busy[chosen]),
        others_weight_gradient=np.maximum(0.0, picked.total(weight_gradient) - weight_gradient[chosen]),
    )


def _first_maximum(values: FloatColumn, start: IntColumn, owner: IntColumn) -> IntColumn:
    highest = np.maximum.reduceat(values, start)
    at_highest = np.flatnonzero(values >= highest[owner])
    first: IntColumn = at_highest[np.flatnonzero(np.diff(owner[at_highest], prepend=-1))]
    return first


def stage_seconds(held: HeldLayers, layers: LayerSeconds, ends: Ends) -> StageSeconds:
    """One micro-batch on each of some stages."""
    weight_gradient = _with_ends(held, "weight_gradient", layers, ends)
    return StageSeconds(
        forward=_with_ends(held, "forward", layers, ends),
        gradients=_with_ends(held, "input_gradient", layers, ends) + weight_gradient,
        weight_gradient=weight_gradient,
        recompute=held.inside(layers.recompute) * held.again,
        tensor=_with_ends(held, "tensor", layers, ends) + held.inside(layers.tensor_recompute) * held.again,
        context=held.inside(layers.context) + held.inside(layers.context_recompute) * held.again,
        expert=held.inside(layers.expert) + held.inside(layers.expert_recompute) * held.again,
    )


def _weights(problem: Problem, held: HeldLayers, layers: LayerSeconds, ends: Ends) -> StageWeights:
    # One matrix serves both ends where they are tied and on one stage.
    one_matrix = problem.model.tied_embeddings
    return StageWeights(
        layers=held.count,
        dense=_add_ends(held, held.inside(layers.dense_weights), ends[0].weights, ends[1].weights, one_matrix),
        routed=held.inside(layers.routed_weights),
        dense_trained=_add_ends(held, held.inside(layers.dense_trained), ends[0].trained, ends[1].trained, one_matrix),
        routed_trained=held.inside(layers.routed_trained),
        dense_orthogonal=held.inside(layers.dense_orthogonal),
        routed_orthogonal=held.inside(layers.routed_orthogonal),
    )


def _with_ends(held: HeldLayers, name: str, layers: LayerSeconds, ends: Ends) -> FloatColumn:
    return _add_ends(held, held.inside(getattr(layers, name)), getattr(ends[0], name), getattr(ends[1], name))


def _add_ends(
    held: HeldLayers, column: FloatColumn, embedding: FloatColumn, head: FloatColumn, one_matrix: bool = False
) -> FloatColumn:
    """Adds both ends of the model to `column`, which is changed."""
    first = np.flatnonzero(held.first)
    last = np.flatnonzero(held.last & ~held.first if one_matrix else held.last)
    column[first] += embedding[held.case[first]]
    column[last] += head[held.case[last]]
    return column
