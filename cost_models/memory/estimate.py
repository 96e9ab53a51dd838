"""The entry point of the memory model."""

from __future__ import annotations

import numpy as np

from cost_models.memory.buffers import buffers
from cost_models.memory.host import host_needs
from cost_models.memory.load import device_load_bytes
from cost_models.memory.loss import loss_head
from cost_models.memory.overhead import (
    communicator_bytes,
    context_bytes,
    fragmentation_bytes,
    stuck_fragmentation_bytes,
    workspace_bytes,
)
from cost_models.memory.peak import stage_peak
from cost_models.memory.recomputation import layer_activations
from cost_models.memory.stage_activations import stage_activations
from cost_models.memory.states import sharding, state_bytes
from cost_models.memory.tokens import tokens
from cost_models.memory.weights import block_weights, end_weights, heaviest_weights, local_weights
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable


def estimate_memory(problem: Problem, table: StrategyTable, stages: StageRows) -> MemoryEstimate:
    """Peak memory of every stage row of valid strategies."""
    row = stages.row
    at = tokens(problem, table)
    shards = sharding(table)
    ends = end_weights(problem, table)
    block = block_weights(problem, table)
    weights = local_weights(problem, table, stages, ends)
    states = state_bytes(problem, table, stages, weights, shards)
    layers = layer_activations(problem, table)
    loss = loss_head(problem, table, at)
    activations = stage_activations(problem, table, stages, layers, loss, at)
    buffer = buffers(problem, table, stages, weights, block, ends, shards, at)
    peak = stage_peak(problem, table, stages, weights, states, activations, loss, buffer)

    workspace = workspace_bytes(problem, table)[row]
    allocated = peak.total + workspace
    expandable = table.expandable_segments[row]
    fragmentation = fragmentation_bytes(expandable, allocated, peak.transient, peak.step_temporaries)
    communicators = communicator_bytes(table)[row]
    context = context_bytes(problem)
    reserved = allocated + fragmentation
    required = allocated + stuck_fragmentation_bytes(expandable, allocated) + communicators + context
    parts = dict(peak.parts)
    parts["communication_buffers"] = parts["communication_buffers"] + communicators
    parts["framework_overhead"] = workspace + context
    parts["fragmentation"] = fragmentation
    heaviest = heaviest_weights(weights, stages)
    host = host_needs(problem, table, heaviest, shards)
    return MemoryEstimate(
        stages=stages,
        parts=parts,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_bytes=reserved + communicators + context,
        required_bytes=required,
        peak_moment=peak.moment,
        fullest=_fullest(required, stages),
        activation_bytes_per_layer=activations.per_layer,
        device_load_peak_bytes=device_load_bytes(table, stages, heaviest, states) + context,
        host_bytes_per_node=host.by_part,
        nvme_bytes_per_node=host.nvme,
    )


def _fullest(required: FloatColumn, stages: StageRows) -> IntColumn:
    """The first stage row of each strategy that requires most."""
    most = np.maximum.reduceat(required, stages.start)
    at_most = np.flatnonzero(required == most[stages.row])
    first: IntColumn = at_most[np.searchsorted(stages.row[at_most], np.arange(len(stages.start)))]
    return first
