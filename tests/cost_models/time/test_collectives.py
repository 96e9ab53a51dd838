"""Collectives against their textbook costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.cluster_input import resolve_cluster
from cost_models.time.coefficients import default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.protocols import Protocol

GB = 1e9
MESSAGE = np.array([8.0 * GB])


def network(nodes: int, **fields: Any) -> Network:
    """A100 nodes with 300 GB/s inside and 200 Gb/s a GPU outside, links without losses and latencies."""
    perfect = replace(
        default_coefficients().links,
        efa_hop_seconds=0.0,
        half_bytes=0.0,
        efa_step_seconds=0.0,
        intra_efficiency=1.0,
        inter_efficiency=1.0,
    )
    given_cluster = {
        "nodes": nodes,
        "gpus_per_node": 8,
        "gpu": "a100-sxm4-80gb",
        "intra_node": {"kind": "nvlink", "gb_per_s": 300},
        "inter_node": {"kind": "infiniband", "gbps_per_gpu": 200},
        **fields,
    }
    protocols = (Protocol(1.0, 0.0, 0.0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),)
    return Network(resolve_cluster(given_cluster), replace(default_coefficients(), links=perfect), protocols)


def seconds(net: Network, collective: str, size: int, stride: int = 1) -> float:
    group = net.channel(np.array([size]), np.array([stride]))
    return float(getattr(net, collective)(group, MESSAGE)[0])


class TestInsideADomain:
    def test_ring_all_reduce_moves_twice_the_message_but_one_part(self) -> None:
        assert seconds(network(1), "all_reduce", 8) == pytest.approx(2 * 7 / 8 * 8 / 300)

    def test_all_gather_moves_it_once(self) -> None:
        assert seconds(network(1), "all_gather", 4) == pytest.approx(3 / 4 * 8 / 300)

    def test_all_to_all_keeps_its_own_part(self) -> None:
        assert seconds(network(1), "all_to_all", 8) == pytest.approx(7 / 8 * 8 / 300)

    def test_one_rank_has_nothing_to_do(self) -> None:
        net = Network(network(1).cluster, default_coefficients())
        for collective in ("all_reduce", "all_gather", "all_to_all", "send"):
            assert seconds(net, collective, 1) == 0


class TestAcrossDomains:
    def test_whole_nodes_use_every_nic(self) -> None:
        assert seconds(network(2), "all_gather", 16) == pytest.approx(15 / 16 * 8 / (8 * 25))

    def test_one_rank_a_node_has_one_nic(self) -> None:
        assert seconds(network(2), "all_gather", 2, stride=8) == pytest.approx(1 / 2 * 8 / 25)

    def test_all_to_all_is_bound_by_the_slower_level(self) -> None:
        assert seconds(network(2), "all_to_all", 16) == pytest.approx(max(7 / 16 * 8 / 300, 8 / 16 * 8 / 25))

    def test_oversubscription_divides_the_fabric(self) -> None:
        inter = {"kind": "infiniband", "gbps_per_gpu": 200, "oversubscription": 2.0}
        assert seconds(network(2, inter_node=inter), "all_gather", 16) == pytest.approx(15 / 16 * 8 / 100)

    def test_a_link_inside_slower_than_the_nics_binds(self) -> None:
        intra = {"kind": "nvlink", "gb_per_s": 50}
        assert seconds(network(2, intra_node=intra), "all_gather", 16) == pytest.approx(15 / 16 * 8 / 50)

    def test_a_message_of_the_half_size_takes_twice_as_long_as_its_bytes(self) -> None:
        net = network(2)
        half = replace(net.coefficients, links=replace(net.coefficients.links, half_bytes=GB))
        slow = Network(net.cluster, half, net.protocols)
        assert seconds(slow, "all_gather", 16) == pytest.approx(2 * seconds(net, "all_gather", 16))


class TestEfa:
    def test_each_step_of_a_ring_waits_for_the_slowest_hop(self) -> None:
        net = network(2, inter_node={"kind": "efa", "gbps_per_gpu": 200})
        slow = replace(net.coefficients, links=replace(net.coefficients.links, efa_step_seconds=1e-3))
        paced = Network(net.cluster, slow, net.protocols)
        assert seconds(paced, "all_gather", 16) == pytest.approx(seconds(net, "all_gather", 16) + 15e-3)
        assert seconds(paced, "all_gather", 8) == seconds(net, "all_gather", 8)


class TestPcie:
    def test_without_peer_to_peer_bytes_go_through_the_host(self) -> None:
        fields = {"gpu": "rtx-4090-24gb", "gpus_per_node": 4}
        direct = {"kind": "pcie", "gb_per_s": 25, "peer_to_peer": True}
        through_host = direct | {"peer_to_peer": False}
        fast = seconds(network(1, **fields, intra_node=direct), "all_gather", 4)
        assert seconds(network(1, **fields, intra_node=through_host), "all_gather", 4) == pytest.approx(2 * fast)

    @pytest.mark.parametrize(("shared_by", "gb_per_s"), [(1, 12.5), (2, 12.5), (4, 6.25)])
    def test_cards_behind_one_path_to_the_host_share_it(self, shared_by: int, gb_per_s: float) -> None:
        host = {"memory_gib": 256, "pcie_shared_by": shared_by}
        net = network(1, gpu="rtx-4090-24gb", intra_node={"gb_per_s": 25}, host=host)
        assert seconds(net, "all_gather", 8) == pytest.approx(7 / 8 * 8 / gb_per_s)

    @pytest.mark.parametrize(("ranks", "milliseconds"), [(4, 81.048), (8, 89.176)])
    def test_all_reduce_on_eight_4090(self, ranks: int, milliseconds: float) -> None:
        """Public notes of June 2026, "8xRTX 4090 NCCL AllReduce Bandwidth": 256 MiB, two processors."""
        net = Network(resolve_cluster({"nodes": 1, "gpus_per_node": 8, "gpu": "rtx-4090-24gb"}), default_coefficients())
        group = net.channel(np.array([ranks]), np.array([1]))
        assert net.all_reduce(group, np.array([256 * 2.0**20])) == pytest.approx(milliseconds / 1e3, rel=0.065)

    def test_bridged_pairs_use_their_bridge(self) -> None:
        bridge = {"kind": "pcie", "gb_per_s": 25, "nvlink_bridge": {"gpus": 2, "gb_per_s": 56}}
        net = network(1, gpu="a100-pcie-80gb", intra_node=bridge)
        assert seconds(net, "all_gather", 2) == pytest.approx(1 / 2 * 8 / 56)
        assert seconds(net, "all_gather", 4) == pytest.approx(3 / 4 * 8 / 25)


class TestMesh:
    """Eight MI300X: 64 GB/s on the link of each pair, 448 to all seven."""

    FIELDS: ClassVar = {"gpu": "mi300x-192gb", "intra_node": {"kind": "xgmi", "gb_per_s": 448}}

    def test_a_group_uses_the_links_between_its_members(self) -> None:
        net = network(1, **self.FIELDS)
        for ranks in (2, 4, 8):
            assert seconds(net, "all_gather", ranks) == pytest.approx((ranks - 1) / ranks * 8 / (64 * (ranks - 1)))

    def test_neighbours_have_one_link(self) -> None:
        assert seconds(network(1, **self.FIELDS), "send", 8) == pytest.approx(8 / 64)

    def test_one_rank_a_host_leaves_by_its_nic(self) -> None:
        net = network(2, **self.FIELDS, inter_node={"kind": "roce", "gbps_per_gpu": 400})
        assert seconds(net, "all_gather", 2, stride=8) == pytest.approx(1 / 2 * 8 / 50)

    def test_a_volta_host_of_four_has_a_third_for_each_pair(self) -> None:
        net = network(1, gpu="v100-sxm2-32gb", gpus_per_node=4, intra_node={"kind": "nvlink", "gb_per_s": 150})
        assert seconds(net, "all_gather", 2) == pytest.approx(1 / 2 * 8 / 50)
        assert seconds(net, "all_gather", 4) == pytest.approx(3 / 4 * 8 / 150)

    def test_a_switch_joins_any_two_at_the_full_rate(self) -> None:
        intra = {"kind": "nvlink", "gb_per_s": 150, "switched": True}
        net = network(1, gpu="v100-sxm2-32gb", gpus_per_node=16, intra_node=intra)
        assert seconds(net, "all_gather", 2) == pytest.approx(1 / 2 * 8 / 150)


class TestMeasured:
    TABLE = (
        {"collective": "all_reduce", "nodes": 2, "bytes": 2**20, "bus_gb_per_s": 10},
        {"collective": "all_reduce", "nodes": 2, "bytes": 2**30, "bus_gb_per_s": 160},
        {"collective": "all_reduce", "nodes": 8, "bytes": 2**20, "bus_gb_per_s": 5},
        {"collective": "all_reduce", "nodes": 8, "bytes": 2**30, "bus_gb_per_s": 40},
    )

    def bandwidth(self, nodes: int, message: float) -> float:
        inter = {"kind": "infiniband", "gbps_per_gpu": 200, "measured": list(self.TABLE)}
        net = network(nodes, inter_node=inter)
        ranks = 8 * nodes
        group = net.channel(np.array([ranks]), np.array([1]))
        took = float(net.all_reduce(group, np.array([message]))[0])
        return 2 * (ranks - 1) / ranks * message / took / GB

    def test_a_measured_point_is_met(self) -> None:
        assert self.bandwidth(8, 2**30) == pytest.approx(40)

    def test_between_points_it_is_the_geometric_mean(self) -> None:
        assert self.bandwidth(4, 2**30) == pytest.approx((160 * 40) ** 0.5)
        assert self.bandwidth(2, 2**25) == pytest.approx((10 * 160) ** 0.5)

    def test_beyond_the_ends_the_nearest_holds(self) -> None:
        assert self.bandwidth(16, 2**34) == pytest.approx(40)

    def partial_seconds(self, nodes: int, per_node: int) -> float:
        """All-reduce of 1 GiB over so many ranks of each host."""
        inter = {"kind": "infiniband", "gbps_per_gpu": 200, "measured": list(self.TABLE)}
        net = network(nodes, inter_node=inter)
        group = net.channel(np.array([nodes * per_node]), np.array([8 // per_node]))
        return float(net.all_reduce(group, np.array([2.0**30]))[0])

    def test_one_rank_of_a_host_has_its_share_of_what_the_nics_were_seen_to_carry(self) -> None:
        assert self.partial_seconds(nodes=2, per_node=1) == pytest.approx(2**30 / (160 * GB / 8))

    def test_what_hosts_reach_together_does_not_slow_the_links_inside_one(self) -> None:
        assert self.partial_seconds(nodes=1, per_node=8) == pytest.approx(2 * 7 / 8 * 2**30 / (300 * GB))

    def test_a_short_ring_over_many_hosts_is_as_fast_as_one_with_as_many_ranks(self) -> None:
        # 16 ranks on 8 hosts: those of 2 whole hosts reach 160 GB/s, the two NICs of each host carry 40
        assert self.partial_seconds(nodes=8, per_node=2) == pytest.approx(2 * 15 / 16 * 2**30 / (40 * GB))
        # 32 ranks: between 2 and 8 hosts 80 GB/s, which four NICs carry
        assert self.partial_seconds(nodes=8, per_node=4) == pytest.approx(2 * 31 / 32 * 2**30 / (80 * GB))


@given(size=st.sampled_from([2, 4, 8, 16, 64, 256]), nodes=st.sampled_from([32, 64]), scale=st.floats(1.01, 8))
def test_more_bandwidth_is_never_slower(size: int, nodes: int, scale: float) -> None:
    slow = {"kind": "infiniband", "gbps_per_gpu": 100}
    fast = {"kind": "infiniband", "gbps_per_gpu": 100 * scale}
    for collective in ("all_reduce", "all_gather", "all_to_all", "send"):
        before = seconds(network(nodes, inter_node=slow), collective, size)
        assert seconds(network(nodes, inter_node=fast), collective, size) <= before * (1 + 1e-12)

    @pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
    @pytest.mark.parametrize("measured", ["all_gather", "reduce_scatter", "all_reduce"])
    def test_any_ring_that_was_measured_stands_for_the_others(self, collective: str, measured: str) -> None:
        point = {"collective": measured, "nodes": 2, "bytes": 2**33, "bus_gb_per_s": 10}
        net = network(2, inter_node={"kind": "infiniband", "gbps_per_gpu": 200, "measured": [point]})
        rounds = 2 if collective == "all_reduce" else 1
        assert seconds(net, collective, 16) == pytest.approx(rounds * 15 / 16 * 8 / 10)

    def test_a_collective_of_its_own_kind_wins(self) -> None:
        points = [
            {"collective": name, "nodes": 2, "bytes": 2**33, "bus_gb_per_s": rate}
            for name, rate in (("all_reduce", 40), ("all_gather", 20), ("all_to_all", 5), ("send_recv", 8))
        ]
        net = network(2, inter_node={"kind": "infiniband", "gbps_per_gpu": 200, "measured": points})
        assert seconds(net, "all_reduce", 16) == pytest.approx(2 * 15 / 16 * 8 / 40)
        assert seconds(net, "all_gather", 16) == pytest.approx(15 / 16 * 8 / 20)
        assert seconds(net, "all_to_all", 16) == pytest.approx(15 / 16 * 8 / 5)
        assert seconds(net, "send", 2, stride=8) == pytest.approx(8 / 8)
        assert seconds(net, "send", 8) == pytest.approx(8 / 300)
