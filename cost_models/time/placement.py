"""Where the ranks of a group sit. Ranks lie innermost to outermost as tensor, context, (expert) data, pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.cluster import Cluster
from cost_models.strategy import FloatColumn, IntColumn


@dataclass(frozen=True)
class Group:
    """Communicating ranks, columns (n,)."""

    size: FloatColumn
    per_domain: FloatColumn
    """Ranks of one group that share a domain."""
    domains: FloatColumn
    nodes: FloatColumn
    """Hosts that the group spans."""


def domain_gpus(cluster: Cluster) -> int:
    """GPUs joined by the fast link: the NVLink domain, or the host where GPUs talk over PCIe."""
    return max(cluster.nvlink_domain_gpus, min(cluster.gpus_per_node, cluster.gpus))


def place(cluster: Cluster, size: IntColumn, stride: IntColumn) -> Group:
    """A group of `size` ranks, `stride` apart."""
    ranks = size.astype(np.float64)
    domain = domain_gpus(cluster)
    per_domain = np.clip(domain // np.maximum(stride, 1), 1, size).astype(np.float64)
    domains = np.ceil(ranks / per_domain)
    nodes = np.where(domains > 1, domains * max(1.0, domain / cluster.gpus_per_node), 1.0)
    return Group(ranks, per_domain, domains, nodes)
