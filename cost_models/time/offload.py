"""Parameters that live on the host or on NVMe: each GPU reads its shard for every pass of every micro-batch."""

from __future__ import annotations

import numpy as np

from cost_models.problem import Problem
from cost_models.strategy import FloatColumn
from cost_models.time.step_groups import StepGroups


def parameter_seconds(problem: Problem, groups: StepGroups, forward: FloatColumn, backward: FloatColumn) -> FloatColumn:
    """What reading 16-bit shards adds to the given passes of each strategy, prefetched under them.

    ZeRO-Infinity (arXiv 2104.07857) section 6.1: every rank reads its own part of each layer, so all PCIe links work.
    """
    host, table = problem.cluster.host, groups.table
    remote = table.is_choice("offload", "optimizer-and-parameters", "nvme")
    if host is None or not remote.any():
        return np.zeros(len(groups.number))
    shard = groups.weights.dense / groups.layout.dense.sharded
    shard = 2.0 * (shard + groups.weights.routed / groups.layout.routed.sharded)
    read = shard / (host.pcie_bytes_per_s / host.pcie_shared_by)
    if host.nvme_read_bytes_per_s:
        from_nvme = shard * problem.cluster.gpus_per_node / host.nvme_read_bytes_per_s
        read = np.where(table.is_choice("offload", "nvme"), np.maximum(read, from_nvme), read)
    each = np.where(remote, read, 0.0)[groups.number]
    exposed: FloatColumn = np.maximum(0.0, each - forward) + np.maximum(0.0, each - backward)
    return exposed * groups.micro_batches[groups.number]
