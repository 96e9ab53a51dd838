"""Groups as collectives see them: latencies and bandwidths, worked out once for each distinct layout of ranks.

A ring over domains leaves each of them through the NICs of all its ranks, so its bandwidth is what these add up to, at
most that of the link inside. A tree joins domains in log2 steps (NCCL 2.4 double binary trees). Steps of both are
counted as in NCCL's src/graph/tuning.cc; on AWS EFA every step of a ring across hosts takes as long as its slowest hop,
since the next part leaves a NIC only when the one before is acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.cluster import Cluster
from cost_models.strategy import FloatColumn, IntColumn
from cost_models.time.coefficients import LinkCoefficients
from cost_models.time.placement import Group, domain_gpus, place
from cost_models.time.protocols import Protocol


@dataclass(frozen=True)
class Channel:
    """One kind of group; columns (n,), all zero cost where a group has one rank."""

    size: FloatColumn
    share: FloatColumn
    """(n - 1) / n: what a ring moves of a message."""
    gather_seconds: tuple[FloatColumn, ...]
    """Latency once round the ring, by protocol."""
    reduce_seconds: tuple[FloatColumn, ...]
    """Latency twice round the ring or up and down the trees, whichever is less, by protocol."""
    bytes_per_s: FloatColumn
    """Bus bandwidth of a ring."""
    half_bytes: FloatColumn
    """Message at which it reaches half of that: more NICs need more bytes to fill them."""
    exchange_seconds: FloatColumn
    """Latency of an all-to-all."""
    exchange_seconds_per_byte: FloatColumn
    """Of an all-to-all, per byte that a rank sends; both levels of links work at the same time."""
    domains: FloatColumn
    across_seconds_per_byte: FloatColumn
    """To another domain, by one rank's own NICs."""
    inside_seconds_per_byte: FloatColumn
    """To the other ranks of its domain, of bytes that go to all of them alike."""
    send_seconds: FloatColumn
    """Latency to a neighbour."""
    send_bytes_per_s: FloatColumn
    nodes: FloatColumn
    """Hosts that the group spans."""
    node_share: FloatColumn
    """Of a whole host's NICs, the group's own; infinite inside a domain, where none are needed."""
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


def channel(
    cluster: Cluster, links: LinkCoefficients, protocols: Sequence[Protocol], size: IntColumn, stride: IntColumn
) -> Channel:
    """A group of `size` ranks, `stride` apart."""
    group = place(cluster, size, stride)
    some = np.where(group.size > 1, 1.0, 0.0)
    spread = group.domains > 1
    inside, nic = _inside_bandwidth(cluster, links, group), _nic_bandwidth(cluster, links)
    kept = (group.per_domain - 1) / group.size / inside
    left = (group.size - group.per_domain) / group.size / nic
    latencies = [_Latency.of(cluster, links, protocol) for protocol in protocols]
    plain, quick = latencies[0], latencies[-1]
    rings = [latency.ring(group) for latency in latencies]
    depth = np.ceil(np.log2(group.domains))
    return Channel(
        size=group.size,
        share=(group.size - 1) / group.size,
        gather_seconds=tuple(some * (latency.ring_base + once) for latency, once in zip(latencies, rings, strict=True)),
        reduce_seconds=tuple(
            some * np.minimum(latency.ring_base + 2 * once, latency.tree(group, depth))
            for latency, once in zip(latencies, rings, strict=True)
        ),
        bytes_per_s=np.where(spread, np.minimum(inside, group.per_domain * nic), inside),
        half_bytes=np.where(spread, group.per_domain * links.half_bytes, 0.0),
        # Every peer gets a message of its own; those to other domains are under way at the same time.
        exchange_seconds=some
        * (plain.ring_base + (group.size - 1) * quick.ring_inside + np.where(spread, plain.ring_across, 0.0)),
        exchange_seconds_per_byte=np.maximum(kept, left),
        domains=group.domains,
        across_seconds_per_byte=np.where(spread, 1 / nic, 0.0),
        inside_seconds_per_byte=(group.per_domain - 1) / group.per_domain / inside,
        send_seconds=some * (plain.ring_base + np.where(spread, plain.ring_across, plain.ring_inside)),
        send_bytes_per_s=np.where(some > 0, np.where(spread, nic, _pair_bandwidth(cluster, links, group)), np.inf),
        nodes=group.nodes,
        node_share=np.where(spread, group.per_domain / domain_gpus(cluster), np.inf),
    )


@dataclass(frozen=True)
class _Latency:
    """Of one protocol on the links of a cluster."""

    ring_base: float
    ring_inside: float
    ring_across: float
    tree_base: float
    tree_inside: float
    tree_across: float
    pace: float
    """Least time of a step of a ring that crosses domains."""

    @classmethod
    def of(cls, cluster: Cluster, links: LinkCoefficients, protocol: Protocol) -> _Latency:
        inside = protocol.pcie if cluster.intra_node.kind == "pcie" else protocol.nvlink
        across = protocol.network
        pace = 0.0
        if cluster.inter_node.kind == "efa":
            across = (max(across[0], links.efa_hop_seconds), max(across[1], links.efa_hop_seconds))
            pace = links.efa_step_seconds
        return cls(protocol.ring_base, inside[0], across[0], protocol.tree_base, inside[1], across[1], pace)

    def ring(self, group: Group) -> FloatColumn:
        """The steps of one round; as many cross domains as there are domains but one."""
        crossing = group.domains - 1
        steps = (group.size - 1 - crossing) * self.ring_inside + crossing * self.ring_across
        paced = np.where(crossing > 0, (group.size - 1) * self.pace, 0.0)
        return np.maximum(steps, paced)

    def tree(self, group: Group, depth: FloatColumn) -> FloatColumn:
        """A chain inside each domain and a tree of that depth over domains, up and down."""
        inside = (group.per_domain - 1) * self.tree_inside
        seconds: FloatColumn = self.tree_base + 2 * (inside + depth * self.tree_across)
        return seconds


def _inside_bandwidth(cluster: Cluster, links: LinkCoefficients, group: Group) -> FloatColumn:
    link = cluster.intra_node
    bandwidth = link.bytes_per_s * links.intra_efficiency
    if not link.peer_to_peer:
        # Through host memory (NCCL's SHM transport): as a card copies there, or as its share of the path to it.
        bandwidth *= min(links.host_efficiency, 1 / cluster.host_path_gpus)
    column = np.full(group.size.shape, bandwidth)
    if link.nvlink_bridge is not None:
        bridged = group.per_domain <= link.nvlink_bridge.gpus
        column[bridged] = link.nvlink_bridge.bytes_per_s * links.intra_efficiency
    if link.mesh_gpus is not None:
        # Without a switch only the links between members carry a group's traffic.
        pairs = np.where(group.per_domain > 1, group.per_domain - 1, np.inf)
        column *= np.minimum(pairs / (link.mesh_gpus - 1), 1.0)
    return column


def _pair_bandwidth(cluster: Cluster, links: LinkCoefficients, group: Group) -> FloatColumn:
    """Of two neighbours in a domain."""
    return _inside_bandwidth(cluster, links, replace(group, per_domain=np.minimum(group.per_domain, 2.0)))


def _nic_bandwidth(cluster: Cluster, links: LinkCoefficients) -> float:
    link = cluster.inter_node
    return link.bytes_per_s / link.oversubscription * links.inter_efficiency
