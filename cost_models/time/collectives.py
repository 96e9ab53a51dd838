"""Seconds of collectives: latency per hop plus bytes over the bandwidth of the slowest link (α-β).

A ring moves (n-1)/n of the whole message through every rank for an all-gather or a reduce-scatter and twice that for an
all-reduce (Thakur, Rabenseifner, Gropp 2005; nccl-tests PERFORMANCE.md defines bus bandwidth by these factors). Across
domains NCCL's rings leave a domain through the NICs of all ranks in it, so that bandwidth is what these add up to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.cluster import Cluster, MeasuredBandwidth
from cost_models.strategy import FloatColumn
from cost_models.time.coefficients import Coefficients, LinkCoefficients
from cost_models.time.placement import Group, domain_gpus


@dataclass(frozen=True)
class Network:
    """Both levels of links with the coefficients of collectives."""

    cluster: Cluster
    coefficients: Coefficients

    @property
    def links(self) -> LinkCoefficients:
        """Latencies and efficiencies of the links."""
        return self.coefficients.links

    def all_gather(self, group: Group, whole_bytes: FloatColumn) -> FloatColumn:
        """Every rank ends up with `whole_bytes`; a reduce-scatter of as much costs the same."""
        share = (group.size - 1) / group.size
        bandwidth = self._bus_bandwidth(group, whole_bytes, "all_gather")
        return self._nothing_alone(group, self._ring_latency(group) + share * whole_bytes / bandwidth)

    def all_reduce(self, group: Group, whole_bytes: FloatColumn) -> FloatColumn:
        """A sum of `whole_bytes` on every rank; latency of a tree over domains where the ring's is longer."""
        share = 2 * (group.size - 1) / group.size
        bandwidth = self._bus_bandwidth(group, whole_bytes, "all_reduce")
        latency = np.minimum(2 * self._ring_latency(group), self._tree_latency(group))
        return self._nothing_alone(group, latency + share * whole_bytes / bandwidth)

    def all_to_all(self, group: Group, sent_bytes: FloatColumn) -> FloatColumn:
        """Each rank sends `sent_bytes` in equal parts to all; both levels of links work at the same time."""
        inside = sent_bytes * (group.per_domain - 1) / group.size / self._intra_bandwidth(group)
        outside = sent_bytes * (group.size - group.per_domain) / group.size / self._nic_bandwidth(group)
        return self._nothing_alone(group, self._ring_latency(group) + np.maximum(inside, outside))

    def send(self, group: Group, sent_bytes: FloatColumn) -> FloatColumn:
        """Point to point between neighbours of the group."""
        bandwidth = np.where(group.domains > 1, self._nic_bandwidth(group), self._intra_bandwidth(group))
        hop = np.where(group.domains > 1, self.links.inter_hop_seconds, self.links.intra_hop_seconds)
        return self._nothing_alone(group, self.links.base_seconds + hop + sent_bytes / bandwidth)

    def _nothing_alone(self, group: Group, seconds: FloatColumn) -> FloatColumn:
        alone: FloatColumn = np.where(group.size > 1, seconds, 0.0)
        return alone

    def _ring_latency(self, group: Group) -> FloatColumn:
        inside = group.domains * (group.per_domain - 1) * self.links.intra_hop_seconds
        return self.links.base_seconds + inside + (group.domains - 1) * self.links.inter_hop_seconds

    def _tree_latency(self, group: Group) -> FloatColumn:
        """Double binary trees over domains, a chain inside (NCCL 2.4)."""
        inside = (group.per_domain - 1) * self.links.intra_hop_seconds
        across = np.ceil(np.log2(group.domains)) * self.links.inter_hop_seconds
        return self.links.base_seconds + 2 * (inside + across)

    def _intra_bandwidth(self, group: Group) -> FloatColumn:
        link = self.cluster.intra_node
        bandwidth = link.bytes_per_s * self.links.intra_efficiency
        if not link.peer_to_peer:
            bandwidth *= self.links.host_efficiency
        column = np.full(group.size.shape, bandwidth)
        if link.nvlink_bridge is not None:
            bridged = group.per_domain <= link.nvlink_bridge.gpus
            column[bridged] = link.nvlink_bridge.bytes_per_s * self.links.intra_efficiency
        return column

    def _nic_bandwidth(self, group: Group) -> FloatColumn:
        link = self.cluster.inter_node
        decline = 1 + self.links.inter_decline * np.log2(np.maximum(group.domains, 1.0))
        return link.bytes_per_s / link.oversubscription * self.links.inter_efficiency / decline

    def _bus_bandwidth(self, group: Group, message_bytes: FloatColumn, collective: str) -> FloatColumn:
        inside = self._intra_bandwidth(group)
        across = np.minimum(inside, group.per_domain * self._nic_bandwidth(group))
        table = [entry for entry in self.cluster.inter_node.measured if entry.collective == collective]
        if not table:
            column: FloatColumn = np.where(group.domains > 1, across, inside)
            return column
        whole_nodes = _interpolate(table, group.nodes, message_bytes)
        # Measured with every GPU of a host in one group; groups side by side share its NICs.
        shared = np.where(group.domains > 1, group.per_domain / domain_gpus(self.cluster), 1.0)
        return whole_nodes * shared


def _interpolate(table: list[MeasuredBandwidth], nodes: FloatColumn, message_bytes: FloatColumn) -> FloatColumn:
    """log(bandwidth) linear in log(nodes) and log(bytes), the nearest measurement beyond the ends."""
    sizes = sorted({entry.nodes for entry in table})
    by_nodes = []
    for size in sizes:
        entries = sorted((e.message_bytes, e.bus_bytes_per_s) for e in table if e.nodes == size)
        x, y = np.log([e[0] for e in entries]), np.log([e[1] for e in entries])
        by_nodes.append(np.interp(np.log(np.maximum(message_bytes, 1.0)), x, y))
    position = np.interp(np.log(nodes), np.log(sizes), np.arange(len(sizes), dtype=np.float64))
    low = np.minimum(position.astype(np.int64), max(len(sizes) - 2, 0))
    stacked = np.stack(by_nodes)
    at = np.arange(len(nodes))
    high = np.minimum(low + 1, len(sizes) - 1)
    blended: FloatColumn = np.exp(stacked[low, at] + (position - low) * (stacked[high, at] - stacked[low, at]))
    return blended
