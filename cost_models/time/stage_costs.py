"""What a stage costs for one micro-batch, which stage is the slowest, and how much the others add to the fill.

Priced once for each distinct (layer case, layout, pipeline, checkpointed layers) and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable
from cost_models.time.ends import EndSeconds
from cost_models.time.layers import LayerSeconds
from cost_models.time.picked_stages import pick_stages


@dataclass(frozen=True)
class StageSeconds:
    """One micro-batch on one stage; columns (rows,)."""

    forward: FloatColumn
    input_gradient: FloatColumn
    weight_gradient: FloatColumn
    recompute: FloatColumn
    tensor: FloatColumn
    context: FloatColumn
    expert: FloatColumn
    layers: FloatColumn
    dense_weights: FloatColumn
    routed_weights: FloatColumn
    dense_trained: FloatColumn
    routed_trained: FloatColumn

    @property
    def communication(self) -> FloatColumn:
        """Exposed traffic of tensor, context and expert parallelism."""
        return self.tensor + self.context + self.expert

    @property
    def backward(self) -> FloatColumn:
        """Everything that is not forward or communication."""
        return self.input_gradient + self.weight_gradient + self.recompute

    @property
    def busy(self) -> FloatColumn:
        """All of one micro-batch."""
        return self.forward + self.backward + self.communication


@dataclass(frozen=True)
class PipelineCosts:
    """Per strategy, columns (n,)."""

    slowest: StageSeconds
    others_busy: FloatColumn
    """Sum over all other stages of one micro-batch's time."""
    others_weight_gradient: FloatColumn
    """The part of it that zero-bubble schedules move into the bubble."""


def pipeline_costs(
    problem: Problem,
    table: StrategyTable,
    stages: StageRows,
    case: IntColumn,
    layers: LayerSeconds,
    ends: tuple[EndSeconds, EndSeconds],
) -> PipelineCosts:
    """The slowest stage of each strategy and the sum of the others."""
    representatives, number = distinct_rows(
        [case, table.layers_per_stage, table.pipeline_parallel_size, table.checkpointed_layers]
    )
    picked = pick_stages(stages, table.pipeline_parallel_size[representatives], representatives)
    seconds = _stage_seconds(problem, stages, picked.rows, case, table, layers, ends)
    busy, start = seconds.busy, picked.start
    slowest = _first_maximum(busy, start, picked.owner)
    total = np.add.reduceat(busy * picked.weight, start)
    moved = np.add.reduceat(seconds.weight_gradient * picked.weight, start)
    return PipelineCosts(
        slowest=_gather(seconds, slowest[number]),
        others_busy=np.maximum(0.0, total - busy[slowest])[number],
        others_weight_gradient=np.maximum(0.0, moved - seconds.weight_gradient[slowest])[number],
    )


def _first_maximum(values: FloatColumn, start: IntColumn, owner: IntColumn) -> IntColumn:
    highest = np.maximum.reduceat(values, start)
    positions = np.where(values >= highest[owner], np.arange(len(values)), len(values))
    first: IntColumn = np.minimum.reduceat(positions, start)
    return first


def _gather(seconds: StageSeconds, rows: IntColumn) -> StageSeconds:
    return StageSeconds(**{f.name: getattr(seconds, f.name)[rows] for f in fields(StageSeconds)})


def _stage_seconds(
    problem: Problem,
    stages: StageRows,
    rows: IntColumn,
    case: IntColumn,
    table: StrategyTable,
    layers: LayerSeconds,
    ends: tuple[EndSeconds, EndSeconds],
) -> StageSeconds:
    strategy = stages.row[rows]
    which = case[strategy]
    held = stages.layers[rows].astype(np.float64)
    count = held.sum(axis=1)
    again = np.minimum(table.checkpointed_layers[strategy], count) / np.maximum(count, 1.0)
    first, last = np.flatnonzero(stages.first[rows]), np.flatnonzero(stages.last[rows])

    def inside(name: str) -> FloatColumn:
        # A plain sum over the kinds: einsum and matmul reorder additions with the number of rows.
        values: FloatColumn = getattr(layers, name)
        total: FloatColumn = held[:, 0] * values[which, 0]
        for kind in range(1, held.shape[1]):
            total = total + held[:, kind] * values[which, kind]
        return total

    def with_ends(name: str, ends_name: str, head: IntColumn) -> FloatColumn:
        column = inside(name)
        column[first] += getattr(ends[0], ends_name)[which[first]]
        column[head] += getattr(ends[1], ends_name)[which[head]]
        return column

    # One matrix serves both ends where they are tied and on one stage.
    own_head = np.setdiff1d(last, first) if problem.model.tied_embeddings else last
    return StageSeconds(
        forward=with_ends("forward", "forward", last),
        input_gradient=with_ends("input_gradient", "input_gradient", last),
        weight_gradient=with_ends("weight_gradient", "weight_gradient", last),
        recompute=inside("recompute") * again,
        tensor=with_ends("tensor", "tensor", last) + inside("tensor_recompute") * again,
        context=inside("context") + inside("context_recompute") * again,
        expert=inside("expert") + inside("expert_recompute") * again,
        layers=count,
        dense_weights=with_ends("dense_weights", "weights", own_head),
        routed_weights=inside("routed_weights"),
        dense_trained=with_ends("dense_trained", "trained", own_head),
        routed_trained=inside("routed_trained"),
    )
