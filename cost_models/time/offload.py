"""Parameters that live on the host or on NVMe: each GPU reads its shard for every pass of every micro-batch."""

from __future__ import annotations

import numpy as np

from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.time.pipeline import micro_batches
from cost_models.time.rank_layout import RankLayout
from cost_models.time.stage_costs import StageSeconds


def parameter_seconds(problem: Problem, table: StrategyTable, stage: StageSeconds, layout: RankLayout) -> FloatColumn:
    """What reading 16-bit shards adds to forward and backward, prefetched under the computation.

    ZeRO-Infinity (arXiv 2104.07857) section 6.1: every rank reads its own part of each layer, so all PCIe links work.
    """
    host = problem.cluster.host
    remote = table.is_choice("offload", "optimizer-and-parameters", "nvme")
    if host is None or not remote.any():
        return np.zeros(len(table))
    shard = stage.dense_weights / layout.dense.sharded
    shard = 2.0 * (shard + stage.routed_weights / layout.routed.sharded)
    pass_seconds = shard / (host.pcie_bytes_per_s / host.pcie_shared_by)
    if host.nvme_read_bytes_per_s:
        from_nvme = shard * problem.cluster.gpus_per_node / host.nvme_read_bytes_per_s
        pass_seconds = np.where(table.is_choice("offload", "nvme"), np.maximum(pass_seconds, from_nvme), pass_seconds)
    forward = np.maximum(0.0, pass_seconds - stage.forward)
    backward = np.maximum(0.0, pass_seconds - stage.backward)
    exposed: FloatColumn = np.where(remote, (forward + backward) * micro_batches(problem, table), 0.0)
    return exposed
