"""Step time of strategies, analytically: operators by shape, collectives by topology, schedules, optimizer, offload.

`estimate_time` prices a layer once for each distinct combination of the columns that decide it, a stage once for each
distinct layout of such layers, and only the rest row by row.
"""

from __future__ import annotations

import numpy as np

from cost_models.problem import Problem
from cost_models.results import TimeEstimate, step_seconds_of
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.time.cases import layer_cases
from cost_models.time.coefficients import Coefficients, default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.data_parallel import data_parallel_seconds
from cost_models.time.device import device_of
from cost_models.time.ends import embedding_seconds, head_seconds
from cost_models.time.flops import model_flops, recompute_flops
from cost_models.time.layers import layer_seconds
from cost_models.time.offload import parameter_seconds
from cost_models.time.optimizer import optimizer_seconds
from cost_models.time.pipeline import bubble_seconds, micro_batches, transfer_seconds
from cost_models.time.rank_layout import rank_layout
from cost_models.time.stage_costs import pipeline_costs


def estimate_time(
    problem: Problem, table: StrategyTable, stages: StageRows, coefficients: Coefficients | None = None
) -> TimeEstimate:
    """One optimizer step of every strategy of a table of valid ones; other `coefficients` to fit them."""
    used = coefficients or default_coefficients()
    device = device_of(problem.cluster.gpu, used)
    network = Network(problem.cluster, used)
    cases, case = layer_cases(problem, table, used)
    ends = (embedding_seconds(problem, cases, network, device), head_seconds(problem, cases, network, device))
    layers = layer_seconds(problem, cases, network, device)
    costs = pipeline_costs(problem, table, stages, case, layers, ends)
    count = micro_batches(problem, table).astype(np.float64)
    stage = costs.slowest
    layout = rank_layout(network, table)
    update = optimizer_seconds(problem, table, stage, layout, network, device)
    parts: dict[str, FloatColumn] = {
        "forward": count * stage.forward,
        "backward": count * (stage.input_gradient + stage.weight_gradient),
        "recompute": count * stage.recompute,
        "tensor_parallel": count * stage.tensor,
        "context_parallel": count * stage.context,
        "expert_parallel": count * stage.expert,
        "pipeline_communication": transfer_seconds(problem, table, layout, network),
        "pipeline_bubble": bubble_seconds(table, costs),
        "data_parallel": data_parallel_seconds(problem, table, stage, layout, network),
        "optimizer": update.update,
        "offload": update.offload + parameter_seconds(problem, table, stage, layout),
    }
    needed = np.full(len(table), model_flops(problem))
    return TimeEstimate(
        parts=parts,
        step_seconds=step_seconds_of(parts),
        model_flops=needed,
        hardware_flops=needed + recompute_flops(problem, table, stages),
        peak_flops_per_s=device.linear_peak(table.precision),
    )
