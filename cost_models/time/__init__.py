"""Step time of strategies, analytically: operators by shape, collectives by topology, schedules, optimizer, offload.

`estimate_time` prices a layer once for each distinct combination of the columns that decide it, a stage once for each
distinct layout of such layers, and only the rest row by row.
"""

from __future__ import annotations

import numpy as np

from cost_models.problem import Problem
from cost_models.results import TimeEstimate
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.time.cases import layer_cases
from cost_models.time.ceiling import below_ceiling, fastest_seconds
from cost_models.time.coefficients import Coefficients, default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.communication import case_groups
from cost_models.time.data_parallel import data_parallel_traffic, exposed_seconds
from cost_models.time.device import device_of
from cost_models.time.ends import embedding_seconds, head_seconds
from cost_models.time.flops import model_flops, recompute_flops, skipped_flops
from cost_models.time.layers import layer_seconds
from cost_models.time.offload import activation_seconds, parameter_seconds
from cost_models.time.optimizer import optimizer_seconds
from cost_models.time.picked_stages import pick_stages
from cost_models.time.pipeline import bubble_seconds, transfer_seconds
from cost_models.time.stage_costs import pipeline_costs
from cost_models.time.step_groups import step_groups


def estimate_time(
    problem: Problem, table: StrategyTable, stages: StageRows, coefficients: Coefficients | None = None
) -> TimeEstimate:
    """One optimizer step of every strategy of a table of valid ones; other `coefficients` to fit them."""
    used = coefficients or default_coefficients()
    device = device_of(problem.cluster.gpu, used)
    network = Network(problem.cluster, used)
    cases, case = layer_cases(problem, table, used)
    near = case_groups(network, cases)
    embedding = embedding_seconds(problem, cases, network, near, device)
    head = head_seconds(problem, cases, network, near, device)
    layers = layer_seconds(problem, cases, network, near, device)
    picked = pick_stages(stages, table, case)
    costs = pipeline_costs(problem, picked, layers, (embedding, head))
    pipeline, stage = picked.pipeline, costs.slowest
    groups = step_groups(problem, table, pipeline, costs, network)
    count = groups.micro_batches[groups.number]
    update = optimizer_seconds(problem, groups, network, device)
    forward, gradients, recompute = (column[pipeline] for column in (stage.forward, stage.gradients, stage.recompute))
    backward = gradients + recompute
    traffic = data_parallel_traffic(problem, groups, network)
    parts: dict[str, FloatColumn] = {
        "forward": count * forward,
        "backward": count * gradients,
        "recompute": count * recompute,
        "tensor_parallel": count * stage.tensor[pipeline],
        "context_parallel": count * stage.context[pipeline],
        "expert_parallel": count * stage.expert[pipeline],
        "pipeline_communication": transfer_seconds(problem, groups, network)[groups.number],
        "pipeline_bubble": bubble_seconds(table, pipeline, costs),
        "data_parallel": exposed_seconds(traffic, groups.number, forward, backward),
        "optimizer": update.update[groups.number],
        "offload": update.offload[groups.number]
        + parameter_seconds(problem, groups, forward, backward)
        + activation_seconds(problem, table, stages, count, (forward, backward)),
    }
    needed = np.full(len(table), model_flops(problem))
    peak = device.linear_peak(table.precision)
    done = needed + recompute_flops(problem, picked, cases)[pipeline]
    fastest = fastest_seconds(needed, done - skipped_flops(problem), peak, problem.cluster.gpus)
    held, step_seconds = below_ceiling(parts, fastest)
    return TimeEstimate(
        parts=held,
        step_seconds=step_seconds,
        model_flops=needed,
        hardware_flops=done,
        peak_flops_per_s=peak,
    )
