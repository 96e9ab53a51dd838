"""Seconds of collectives: latency per hop plus bytes over the bandwidth of the slowest link (α-β).

A ring moves (n-1)/n of the whole message through every rank for an all-gather or a reduce-scatter and twice that for an
all-reduce (Thakur, Rabenseifner, Gropp 2005; nccl-tests PERFORMANCE.md defines bus bandwidth by these factors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.cluster import Cluster, MeasuredBandwidth
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn
from cost_models.time.channels import Channel, channel
from cost_models.time.coefficients import Coefficients
from cost_models.time.protocols import PROTOCOLS, Protocol

SAME: Final = 1e-9
"""Relative: latencies this close are one."""
RING_COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce")


@dataclass(frozen=True)
class Network:
    """Both levels of links with the coefficients of collectives."""

    cluster: Cluster
    coefficients: Coefficients
    protocols: tuple[Protocol, ...] = PROTOCOLS

    def channel(self, size: IntColumn, stride: IntColumn) -> Channel:
        """A group of `size` ranks, `stride` apart."""
        return channel(self.cluster, self.coefficients.links, self.protocols, size, stride)

    def all_gather(self, group: Channel, whole_bytes: FloatColumn) -> FloatColumn:
        """Every rank ends up with `whole_bytes`; a reduce-scatter of as much costs the same."""
        return self._fastest(group, group.gather_seconds, self._ring_seconds(group, whole_bytes, "all_gather"))

    def all_reduce(self, group: Channel, whole_bytes: FloatColumn) -> FloatColumn:
        """A sum of `whole_bytes` on every rank; latency of a tree over domains where the ring's is longer."""
        return self._fastest(group, group.reduce_seconds, 2 * self._ring_seconds(group, whole_bytes, "all_reduce"))

    def all_to_all(self, group: Channel, sent_bytes: FloatColumn) -> FloatColumn:
        """Each rank sends `sent_bytes` in equal parts to all."""
        by_links = sent_bytes * group.at(group.exchange_seconds_per_byte)
        return group.at(group.exchange_seconds) + self._as_measured(group, sent_bytes, "all_to_all", by_links)

    def forwarded(self, group: Channel, across_bytes: FloatColumn, inside_bytes: FloatColumn) -> FloatColumn:
        """Each rank sends `across_bytes` to its peers in other domains, which forward: `inside_bytes` go to all ranks
        of a domain alike, while the next are under way (arXiv 2412.19437, section 3.2.2)."""
        across = across_bytes * group.at(group.across_seconds_per_byte)
        inside = inside_bytes * group.at(group.inside_seconds_per_byte)
        return group.at(group.exchange_seconds) + np.maximum(across, inside)

    def send(self, group: Channel, sent_bytes: FloatColumn) -> FloatColumn:
        """Point to point between neighbours of the group."""
        by_links: FloatColumn = sent_bytes * group.at(1 / group.send_bytes_per_s)
        table = self._measured("send_recv")
        if table:
            across = ~np.isinf(group.at(group.node_share))
            by_links = np.where(across, sent_bytes / _interpolate(table, group.at(group.nodes), sent_bytes), by_links)
        return group.at(group.send_seconds) + by_links

    def choice(self, group: Channel, message_bytes: FloatColumn, *, summed: bool) -> tuple[IntColumn, BoolColumn]:
        """What is priced: the index of the protocol, and whether along trees; of an all-reduce (`summed`), else of a
        reduce-scatter."""
        rounds, collective = (2, "all_reduce") if summed else (1, "reduce_scatter")
        moving = rounds * self._ring_seconds(group, message_bytes, collective)
        latencies = group.reduce_seconds if summed else group.gather_seconds
        seconds = [group.at(one) + moving / way.bandwidth for one, way in zip(latencies, self.protocols, strict=True)]
        chosen: IntColumn = np.argmin(np.stack(seconds), axis=0)
        # A ring's base is paid once, its steps in both rounds.
        rings = [
            group.at(2 * once) - way.ring_base for once, way in zip(group.gather_seconds, self.protocols, strict=True)
        ]
        shorter = [group.at(one) < ring * (1 - SAME) for one, ring in zip(group.reduce_seconds, rings, strict=True)]
        climbs: BoolColumn = np.stack(shorter)[chosen, np.arange(len(chosen))]
        return chosen, climbs if summed else np.zeros_like(climbs)

    def _fastest(self, group: Channel, latencies: tuple[FloatColumn, ...], moving: FloatColumn) -> FloatColumn:
        """By the protocol that is the fastest for each message, given the seconds that its bytes alone take."""
        best = group.at(latencies[0]) + moving / self.protocols[0].bandwidth
        for protocol, latency in zip(self.protocols[1:], latencies[1:], strict=True):
            np.minimum(best, group.at(latency) + moving / protocol.bandwidth, out=best)
        return best

    def _ring_seconds(self, group: Channel, message_bytes: FloatColumn, collective: str) -> FloatColumn:
        """Once round the ring, without latency."""
        by_links: FloatColumn = (message_bytes + group.at(group.half_bytes)) * group.at(group.share / group.bytes_per_s)
        return self._as_measured(group, message_bytes, collective, by_links)

    def _as_measured(
        self, group: Channel, message_bytes: FloatColumn, collective: str, by_links: FloatColumn
    ) -> FloatColumn:
        """What the cluster's own measurements say, where they say something; without latency."""
        table = self._measured(collective)
        if not table:
            return by_links
        # Measured with every GPU of a host in one group. What declines with hosts is the pace of a long ring: a group
        # with fewer ranks on each is a shorter one, as fast as one on fewer hosts while its own NICs carry it.
        hosts = group.ranks / self.cluster.gpus_per_node
        carried = max((entry.bus_bytes_per_s for entry in table if entry.nodes > 1), default=np.inf)
        bandwidth = np.minimum(_interpolate(table, hosts, message_bytes), carried * group.at(group.node_share))
        as_measured = message_bytes * group.at(group.share) / bandwidth
        if any(entry.nodes == 1 for entry in table):
            return as_measured
        # Nothing measured across hosts tells of the links inside a domain.
        return np.where(np.isinf(group.at(group.node_share)), by_links, as_measured)

    def _measured(self, collective: str) -> list[MeasuredBandwidth]:
        """Measurements of a collective, or else of another that moves its bytes round the same ring: nccl-tests
        defines bus bandwidth so that these compare (PERFORMANCE.md)."""
        for name in (collective, *(other for other in RING_COLLECTIVES if collective in RING_COLLECTIVES)):
            table = [entry for entry in self.cluster.inter_node.measured if entry.collective == name]
            if table:
                return table
        return []


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
    high = np.minimum(low + 1, len(sizes) - 1)
    stacked = np.stack(by_nodes)
    at = np.arange(len(nodes))
    blended: FloatColumn = np.exp(stacked[low, at] + (position - low) * (stacked[high, at] - stacked[low, at]))
    return blended
