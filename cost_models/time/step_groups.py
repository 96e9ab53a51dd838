"""Strategies that share everything outside the layers: layout of ranks, weights of the slowest stage, micro-batches,
optimizer. Worked out once for each distinct combination and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable
from cost_models.time.collectives import Network
from cost_models.time.rank_layout import RANK_COLUMNS, RankLayout, rank_layout
from cost_models.time.stage_costs import PipelineCosts, StageWeights

GROUP_COLUMNS: Final = (
    *RANK_COLUMNS,
    "micro_batch_size",
    "framework",
    "zero_stage",
    "sequence_parallel",
    "layers_per_stage",
    "overlap_communication",
    "precision",
    "parameter_dtype",
    "gradient_dtype",
    "optimizer_state_dtype",
    "offload",
    "offload_fraction",
)


@dataclass(frozen=True)
class StepGroups:
    """g distinct combinations; columns (g,)."""

    table: StrategyTable
    number: IntColumn
    """(n,) which of them each strategy is."""
    weights: StageWeights
    layout: RankLayout
    micro_batches: FloatColumn
    """Of one data-parallel rank in one step."""


def step_groups(
    problem: Problem, table: StrategyTable, pipeline: IntColumn, costs: PipelineCosts, network: Network
) -> StepGroups:
    """The distinct combinations of a table whose strategies have the given pipelines."""
    chosen, number = distinct_rows([*(getattr(table, name) for name in GROUP_COLUMNS), costs.stage[pipeline]])
    few, which = table.take(chosen), pipeline[chosen]
    count = problem.micro_batches(few)
    return StepGroups(
        table=few,
        number=number,
        weights=StageWeights(**{f.name: getattr(costs.weights, f.name)[which] for f in fields(StageWeights)}),
        layout=rank_layout(network, few),
        micro_batches=count.astype(np.float64),
    )
