"""Groups as collectives see them: latencies and bandwidths, worked out once for each distinct layout of ranks.

A ring over domains leaves each of them through the NICs of all its ranks, so its bandwidth is what these add up to, at
most that of the link inside. A tree joins domains in log2 steps (NCCL 2.4 double binary trees).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.cluster import Cluster
from cost_models.strategy import FloatColumn, IntColumn
from cost_models.time.coefficients import LinkCoefficients
from cost_models.time.placement import Group, domain_gpus, place


@dataclass(frozen=True)
class Channel:
    """One kind of group; columns (n,), all zero cost where a group has one rank."""

    size: FloatColumn
    share: FloatColumn
    """(n - 1) / n: what a ring moves of a message."""
    ring_seconds: FloatColumn
    """Latency once round the ring."""
    tree_seconds: FloatColumn
    """Latency up and down the trees."""
    bytes_per_s: FloatColumn
    """Bus bandwidth of a ring."""
    half_bytes: FloatColumn
    """Message at which it reaches half of that: more NICs need more bytes to fill them."""
    exchange_seconds_per_byte: FloatColumn
    """Of an all-to-all, per byte that a rank sends; both levels of links work at the same time."""
    send_seconds: FloatColumn
    """Latency to a neighbour."""
    send_bytes_per_s: FloatColumn
    nodes: FloatColumn
    """Hosts that the group spans."""
    node_share: FloatColumn
    """Of a whole host's bandwidth, where groups side by side share its NICs."""
    number: IntColumn | None = None
    """Which row of the columns above each strategy has; None: its own."""

    @property
    def ranks(self) -> FloatColumn:
        """Size of each strategy's group."""
        return self.at(self.size)

    def at(self, column: FloatColumn) -> FloatColumn:
        """A column worked out for the few distinct groups, for each strategy."""
        return column if self.number is None else column[self.number]

    def take(self, number: IntColumn) -> Channel:
        """For strategies that have the given rows; gathered when asked for."""
        return replace(self, number=number)


def channel(cluster: Cluster, links: LinkCoefficients, size: IntColumn, stride: IntColumn) -> Channel:
    """A group of `size` ranks, `stride` apart."""
    group = place(cluster, size, stride)
    alone = group.size <= 1
    spread = group.domains > 1
    inside, nic = _inside_bandwidth(cluster, links, group), _nic_bandwidth(cluster, links, group)
    kept = (group.per_domain - 1) / group.size / inside
    left = (group.size - group.per_domain) / group.size / nic
    across = _inter_hop_seconds(cluster, links)
    hop = np.where(spread, across, links.intra_hop_seconds)
    efa = cluster.inter_node.kind == "efa"
    return Channel(
        size=group.size,
        share=(group.size - 1) / group.size,
        ring_seconds=np.where(alone, 0.0, _ring_latency(links, across, group)),
        tree_seconds=np.where(alone, 0.0, _tree_latency(links, across, group)),
        bytes_per_s=np.where(spread, np.minimum(inside, group.per_domain * nic), inside),
        half_bytes=np.where(spread, group.per_domain * (links.efa_half_bytes if efa else links.half_bytes), 0.0),
        exchange_seconds_per_byte=np.maximum(kept, left),
        send_seconds=np.where(alone, 0.0, links.base_seconds + hop),
        send_bytes_per_s=np.where(alone, np.inf, np.where(spread, nic, inside)),
        nodes=group.nodes,
        node_share=np.where(spread, group.per_domain / domain_gpus(cluster), 1.0),
    )


def _inter_hop_seconds(cluster: Cluster, links: LinkCoefficients) -> float:
    return links.efa_hop_seconds if cluster.inter_node.kind == "efa" else links.inter_hop_seconds


def _ring_latency(links: LinkCoefficients, hop_seconds: float, group: Group) -> FloatColumn:
    inside = group.domains * (group.per_domain - 1) * links.intra_hop_seconds
    return links.base_seconds + inside + (group.domains - 1) * hop_seconds


def _tree_latency(links: LinkCoefficients, hop_seconds: float, group: Group) -> FloatColumn:
    inside = (group.per_domain - 1) * links.intra_hop_seconds
    across = np.ceil(np.log2(group.domains)) * hop_seconds
    return links.base_seconds + 2 * (inside + across)


def _inside_bandwidth(cluster: Cluster, links: LinkCoefficients, group: Group) -> FloatColumn:
    link = cluster.intra_node
    bandwidth = link.bytes_per_s * links.intra_efficiency
    if not link.peer_to_peer:
        bandwidth *= links.host_efficiency
    column = np.full(group.size.shape, bandwidth)
    if link.nvlink_bridge is not None:
        bridged = group.per_domain <= link.nvlink_bridge.gpus
        column[bridged] = link.nvlink_bridge.bytes_per_s * links.intra_efficiency
    return column


def _nic_bandwidth(cluster: Cluster, links: LinkCoefficients, group: Group) -> FloatColumn:
    link = cluster.inter_node
    decline = 1 + links.inter_decline * np.log2(group.domains)
    return link.bytes_per_s / link.oversubscription * links.inter_efficiency / decline
