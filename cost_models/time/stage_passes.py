"""Forward and backward of each pipeline stage for one micro-batch: what a timeline of the schedule is drawn from.

The same layers, ends and traffic as in the step time, by stage instead of the slowest one alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.problem import Problem
from cost_models.stages import all_stages
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.time.cases import layer_cases
from cost_models.time.coefficients import Coefficients, default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.communication import case_groups
from cost_models.time.device import device_of
from cost_models.time.ends import embedding_seconds, head_seconds
from cost_models.time.layers import layer_seconds
from cost_models.time.picked_stages import pick_stages
from cost_models.time.stage_costs import stage_seconds


@dataclass(frozen=True)
class StagePasses:
    """One strategy; columns (P,), seconds of one micro-batch on each of its P stages."""

    forward: FloatColumn
    input_gradient: FloatColumn
    """Backward without weight gradients, with recomputation."""
    weight_gradient: FloatColumn

    @property
    def busy(self) -> FloatColumn:
        """Forward and backward together."""
        total: FloatColumn = self.forward + self.input_gradient + self.weight_gradient
        return total

    def scaled(self, factor: float) -> StagePasses:
        """Every pass so many times as long."""
        return StagePasses(self.forward * factor, self.input_gradient * factor, self.weight_gradient * factor)


def stage_passes(problem: Problem, table: StrategyTable, coefficients: Coefficients | None = None) -> StagePasses:
    """Of the only strategy of `table`, a valid one.

    The step time knows a stage's exposed traffic of forward and backward together: half of what is not recomputed is
    drawn in each, as every collective of a layer's forward has its transpose in backward (arXiv 1909.08053 figure 3).
    """
    used = coefficients or default_coefficients()
    device = device_of(problem.cluster.gpu, used)
    network = Network(problem.cluster, used)
    cases, case = layer_cases(problem, table, used)
    near = case_groups(network, cases)
    ends = (
        embedding_seconds(problem, cases, network, near, device),
        head_seconds(problem, cases, network, near, device),
    )
    layers = layer_seconds(problem, cases, network, near, device)
    held = pick_stages(all_stages(problem.model, table), table, case).held
    seconds = stage_seconds(held, layers, ends)
    again = held.inside(layers.tensor_recompute + layers.context_recompute + layers.expert_recompute) * held.again
    traffic = np.maximum(0.0, seconds.tensor + seconds.context + seconds.expert - again)
    return StagePasses(
        forward=seconds.forward + traffic / 2,
        input_gradient=seconds.gradients - seconds.weight_gradient + seconds.recompute + again + traffic / 2,
        weight_gradient=seconds.weight_gradient,
    )
