"""What crosses PCIe in every micro-batch: parameters that live on the host or on NVMe, and activations."""

from __future__ import annotations

import numpy as np

from cost_models.memory.recomputation import layer_activations
from cost_models.memory.stage_activations import offloaded_share
from cost_models.problem import Problem
from cost_models.stages import StageRows, checkpointed_share
from cost_models.strategy import FloatColumn, StrategyTable, dtype_bytes
from cost_models.time.step_groups import StepGroups


def parameter_seconds(problem: Problem, groups: StepGroups, forward: FloatColumn, backward: FloatColumn) -> FloatColumn:
    """What reading shards adds to the given passes of each strategy, prefetched under them.

    ZeRO-Infinity (arXiv 2104.07857) section 6.1: every rank reads its own part of each layer, so all PCIe links work.
    Shards cross in the dtype that they are stored in; FSDP casts them on the GPU (torch 2.13, _fsdp_param.py,
    all_gather_inputs).
    """
    host, table = problem.cluster.host, groups.table
    remote = table.is_choice("offload", "optimizer-and-parameters", "nvme")
    if host is None or not remote.any():
        return np.zeros(len(groups.number))
    shard = groups.weights.dense / groups.layout.dense.sharded
    shard = dtype_bytes(table.parameter_dtype) * (shard + groups.weights.routed / groups.layout.routed.sharded)
    read = shard / host.gpu_bytes_per_s(problem.cluster.gpus_per_node)
    if host.nvme_read_bytes_per_s:
        from_nvme = shard * problem.cluster.gpus_per_node / host.nvme_read_bytes_per_s
        read = np.where(table.is_choice("offload", "nvme"), np.maximum(read, from_nvme), read)
    each = np.where(remote, read, 0.0)[groups.number]
    exposed: FloatColumn = np.maximum(0.0, each - forward) + np.maximum(0.0, each - backward)
    return exposed * groups.micro_batches[groups.number]


def activation_seconds(
    problem: Problem,
    table: StrategyTable,
    stages: StageRows,
    micro_batches: FloatColumn,
    passes: tuple[FloatColumn, FloatColumn],
) -> FloatColumn:
    """(n,) what saving activations to the host adds to forward, and reading them to backward, of all micro-batches.

    They move on a stream of their own, under the computation of other layers; all GPUs of a host share its memory.
    """
    host, moved = problem.cluster.host, offloaded_share(table)
    if host is None or not moved.any():
        return np.zeros(len(table))
    kept = np.maximum.reduceat(_kept_bytes(problem, table, stages), stages.start)
    each = moved * kept / host.gpu_bytes_per_s(problem.cluster.gpus_per_node)
    exposed: FloatColumn = sum((np.maximum(0.0, each - hiding) for hiding in passes), np.zeros(len(table)))
    return exposed * micro_batches


def _kept_bytes(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) that the layers of a stage save for the backward of one micro-batch."""
    layers = layer_activations(problem, table)
    which = layers.which[stages.row]
    counts = stages.layers.astype(np.float64)
    share = checkpointed_share(table, stages.row, counts.sum(axis=1))[:, None]
    kept, saved = layers.kept[which], layers.saved[which]
    total: FloatColumn = (counts * (share * kept + (1.0 - share) * saved)).sum(axis=1)
    return total
