"""Schedules: how long a pipeline fills and drains, and what passing activations between stages exposes.

With m micro-batches and stages that take t_i each for forward and backward of one, 1F1B and GPipe end after
(m - 1) max t + Σ t_i; equal stages leave the bubble (P - 1) / m of arXiv 2104.04473 section 2.2. v chunks a stage
divide it by v (same paper). Zero-bubble schedules put weight gradients into it: (P - 1)(F + B - W) for ZB-H1,
(P - 1)(F + B - 2W) for ZB-H2 (arXiv 2401.10241 table 2), which ZB-V reaches with the memory of 1F1B (section 6).
"""

from __future__ import annotations

import numpy as np

from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable
from cost_models.time.cases import framework_flags
from cost_models.time.collectives import Network
from cost_models.time.communication import ACTIVATION_BYTES
from cost_models.time.stage_costs import PipelineCosts
from cost_models.time.step_groups import StepGroups


def bubble_seconds(table: StrategyTable, pipeline: IntColumn, costs: PipelineCosts) -> FloatColumn:
    """Time that the slowest stage waits while the pipeline fills and drains."""
    bubble: FloatColumn = costs.others_busy[pipeline] / table.virtual_pipeline_size
    zero_bubble = np.flatnonzero(table.is_choice("pipeline_schedule", "zero-bubble"))
    if len(zero_bubble):
        which = pipeline[zero_bubble]
        # F + B - W is the whole of a micro-batch less 2 W
        passes = np.where(table.virtual_pipeline_size[zero_bubble] > 1, 3.0, 2.0)
        filled = costs.others_busy[which] - passes * costs.others_weight_gradient[which]
        bubble[zero_bubble] = np.maximum(0.0, filled)
    return bubble


def transfer_seconds(problem: Problem, groups: StepGroups, network: Network) -> FloatColumn:
    """Activations forward and their gradients back, by step group: exposed in the steady state as far as the schedule
    waits, and once through all stages."""
    table, layout = groups.table, groups.layout
    tokens = table.micro_batch_size * float(problem.workload.sequence_length) / table.context_parallel_size
    split = framework_flags("splits_pipeline_traffic")[table.framework] & ~table.sequence_parallel
    shard = np.where(table.sequence_parallel | split, tokens / table.tensor_parallel_size, tokens)
    whole = tokens * problem.model.hidden_size * ACTIVATION_BYTES
    one = network.send(layout.pipeline, shard * problem.model.hidden_size * ACTIVATION_BYTES)
    one = one + np.where(split & (table.pipeline_parallel_size > 1), network.all_gather(layout.tensor, whole), 0.0)
    chunks = table.virtual_pipeline_size.astype(np.float64)
    hidden = network.coefficients.by_framework("hidden_pipeline_traffic")[table.framework]
    hidden = np.where((chunks > 1) & table.overlap_communication, hidden, 0.0)
    steady = 2 * one * chunks * groups.micro_batches * (1 - hidden)
    fill = 2 * one * (table.pipeline_parallel_size - 1)
    return steady + fill
