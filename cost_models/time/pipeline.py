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
from cost_models.time.rank_layout import RankLayout
from cost_models.time.stage_costs import PipelineCosts


def micro_batches(problem: Problem, table: StrategyTable) -> IntColumn:
    """m: of one data-parallel rank in one step."""
    count: IntColumn = problem.workload.global_batch_size // (table.data_parallel_size * table.micro_batch_size)
    return count


def bubble_seconds(table: StrategyTable, costs: PipelineCosts) -> FloatColumn:
    """Time that the slowest stage waits while the pipeline fills and drains."""
    chunks = table.virtual_pipeline_size.astype(np.float64)
    plain = costs.others_busy / chunks
    zero_bubble = table.is_choice("pipeline_schedule", "zero-bubble")
    weight_passes = np.where(chunks > 1, 3.0, 2.0)  # F + B - W is the whole of a micro-batch less 2 W
    filled = np.maximum(0.0, costs.others_busy - weight_passes * costs.others_weight_gradient)
    bubble: FloatColumn = np.where(zero_bubble, filled, plain)
    return bubble


def transfer_seconds(problem: Problem, table: StrategyTable, layout: RankLayout, network: Network) -> FloatColumn:
    """Activations forward and their gradients back: exposed in the steady state as far as the schedule waits, and once
    through all stages."""
    tokens = table.micro_batch_size * float(problem.workload.sequence_length) / table.context_parallel_size
    split = framework_flags("splits_pipeline_traffic")[table.framework] & ~table.sequence_parallel
    shard = np.where(table.sequence_parallel | split, tokens / table.tensor_parallel_size, tokens)
    whole = tokens * problem.model.hidden_size * ACTIVATION_BYTES
    one = network.send(layout.pipeline, shard * problem.model.hidden_size * ACTIVATION_BYTES)
    one = one + np.where(split & (table.pipeline_parallel_size > 1), network.all_gather(layout.tensor, whole), 0.0)
    chunks = table.virtual_pipeline_size.astype(np.float64)
    hidden = network.coefficients.by_framework("hidden_pipeline_traffic")[table.framework]
    hidden = np.where((chunks > 1) & table.overlap_communication, hidden, 0.0)
    steady = 2 * one * chunks * micro_batches(problem, table) * (1 - hidden)
    fill = 2 * one * (table.pipeline_parallel_size - 1)
    return steady + fill
