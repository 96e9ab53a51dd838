"""`nvidia-smi topo -m` as an `intra_node`: what is read of real hosts, what is refused, and that no text is a crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.cluster import Cluster, IntraNodeLink, NvlinkBridge
from cost_models.cluster_input import resolve_cluster
from cost_models.errors import InvalidInput
from cost_models.units import GB
from tests.cost_models.topologies import (
    BRIDGED_PAIRS,
    FOUR_BEHIND_A_SWITCH,
    H100_OF_FOUR,
    OWN_PATHS,
    SWITCHED_OF_EIGHT,
    V100_CUBE_MESH,
    matrix,
    mesh,
)

WORDS = st.sampled_from(["X", "NV1", "NV2", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "OK", ""])
UNKNOWN_GPU: dict[str, Any] = {
    "name": "accelerator-x",
    "memory_gib": 94.5,
    "memory_gb_per_s": 2400,
    "peak_tflops": {"bf16": 989},
    "tdp_watts": 500,
}


def described(topology: object, gpu: object, gpus_per_node: int, /, host: Any = None, **stated: Any) -> Cluster:
    """A cluster of two hosts whose `intra_node` is the topology and what is stated beside it."""
    fields = {"nodes": 2, "gpus_per_node": gpus_per_node, "gpu": gpu, "host": host}
    inter = {"kind": "infiniband", "gbps_per_gpu": 400}
    return resolve_cluster({**fields, "intra_node": {"topology": topology, **stated}, "inter_node": inter})


def refusal(*args: Any, **stated: Any) -> tuple[str, str]:
    """Where and by which rule a description is refused."""
    with pytest.raises(InvalidInput) as caught:
        described(*args, **stated)
    assert caught.value.message
    return ".".join(map(str, caught.value.loc)), caught.value.code


class TestReading:
    @pytest.mark.parametrize(
        ("topology", "gpu", "gpus", "link"),
        [
            (SWITCHED_OF_EIGHT, "h100-sxm5-80gb", 8, IntraNodeLink("nvlink", 450 * GB)),
            (SWITCHED_OF_EIGHT, "b200-sxm-180gb", 8, IntraNodeLink("nvlink", 900 * GB)),
            (mesh(8, "NV12"), "a100-sxm4-80gb", 8, IntraNodeLink("nvlink", 300 * GB)),
            (mesh(8, "NV8"), "h800-sxm5-80gb", 8, IntraNodeLink("nvlink", 200 * GB)),
            (mesh(4, "NV18"), "gb200-186gb", 4, IntraNodeLink("nvlink", 900 * GB)),
            (mesh(16, "NV6"), "v100-sxm2-32gb", 16, IntraNodeLink("nvlink", 150 * GB)),
            (H100_OF_FOUR, "h100-sxm5-80gb", 4, IntraNodeLink("nvlink", 450 * GB, mesh_gpus=4)),
            (mesh(4, "NV4"), "a100-sxm4-40gb", 4, IntraNodeLink("nvlink", 300 * GB, mesh_gpus=4)),
            (V100_CUBE_MESH, "v100-sxm2-32gb", 8, IntraNodeLink("nvlink", 150 * GB, mesh_gpus=8)),
            (
                BRIDGED_PAIRS,
                "a40-48gb",
                4,
                IntraNodeLink("pcie", 25 * GB, nvlink_bridge=NvlinkBridge(2, 56.25 * GB)),
            ),
            (
                mesh(2, "NV12"),
                "a100-pcie-80gb",
                2,
                IntraNodeLink("pcie", 25 * GB, nvlink_bridge=NvlinkBridge(2, 300 * GB)),
            ),
            (
                FOUR_BEHIND_A_SWITCH,
                "rtx-4090-24gb",
                8,
                IntraNodeLink("pcie", 25 * GB, peer_to_peer=False, path_gpus=4),
            ),
            (OWN_PATHS, "rtx-4090-24gb", 5, IntraNodeLink("pcie", 25 * GB, peer_to_peer=False, path_gpus=1)),
            (mesh(4, "PHB"), "l40s-48gb", 4, IntraNodeLink("pcie", 25 * GB)),
        ],
    )
    def test_link(self, topology: str, gpu: str, gpus: int, link: IntraNodeLink) -> None:
        assert described(topology, gpu, gpus).intra_node == link

    def test_a_topology_is_priced_as_the_same_link_stated(self) -> None:
        stated = resolve_cluster({"nodes": 1, "gpus_per_node": 8, "gpu": "v100-sxm2-32gb"})
        read = described(V100_CUBE_MESH, "v100-sxm2-32gb", 8)
        assert read.intra_node == stated.intra_node
        assert read.nvlink_domain_gpus == 8

    def test_everything_read_is_listed(self) -> None:
        read = [line for line in described(BRIDGED_PAIRS, "a40-48gb", 4).assumptions if " read: " in line]
        assert read == [
            "cluster.intra_node.topology read: 2 x NV4, 4 x SYS: kind pcie, bridges of 2 with 4 NVLinks a GPU, "
            "gb_per_s 56.25 at 14.0625 a link "
            "(NVIDIA Ampere GA102 whitepaper v2.1: four links of 14.0625 GB/s each way)"
        ]

    def test_pcie_path_reaches_the_host(self) -> None:
        cluster = described(FOUR_BEHIND_A_SWITCH, "l40s-48gb", 8, {"memory_gib": 512})
        assert cluster.host is not None
        assert cluster.host.pcie_shared_by == cluster.host_path_gpus == 4
        assert described(FOUR_BEHIND_A_SWITCH, "l40s-48gb", 8).host_path_gpus == 4

    def test_order_of_bridged_cards(self) -> None:
        rows = [
            ["X" if one == other else "NV4" if one % 2 == other % 2 else "SYS" for other in range(4)]
            for one in range(4)
        ]
        listed = " ".join(described(matrix(rows), "a40-48gb", 4).assumptions)
        assert "CUDA_VISIBLE_DEVICES=0,2,1,3" in listed

    def test_unknown_gpu_states_its_rate(self) -> None:
        assert described(SWITCHED_OF_EIGHT, UNKNOWN_GPU, 8, gb_per_s=400).intra_node == IntraNodeLink(
            "nvlink", 400 * GB
        )
        assert refusal(SWITCHED_OF_EIGHT, UNKNOWN_GPU, 8) == ("cluster.intra_node.gb_per_s", "missing")
        assert refusal(BRIDGED_PAIRS, UNKNOWN_GPU, 4, gb_per_s=25) == ("cluster.intra_node.nvlink_bridge", "missing")
        bridge = {"gpus": 2, "gb_per_s": 90}
        link = described(BRIDGED_PAIRS, UNKNOWN_GPU, 4, gb_per_s=25, nvlink_bridge=bridge).intra_node
        assert link == IntraNodeLink("pcie", 25 * GB, nvlink_bridge=NvlinkBridge(2, 90 * GB))

    def test_one_gpu(self) -> None:
        assert described(matrix([["X"]]), "h100-sxm5-80gb", 1).intra_node.kind == "nvlink"


class TestRefusal:
    @pytest.mark.parametrize(
        ("topology", "code"),
        [
            ("", "topology_unreadable"),
            ("nothing of the kind", "topology_unreadable"),
            (7, "not_a_text"),
            ("x" * 70_000, "too_long"),
            (BRIDGED_PAIRS + BRIDGED_PAIRS, "topology_unreadable"),
            (
                BRIDGED_PAIRS.replace("GPU3    SYS     SYS     NV4      X", "GPU3    SYS     SYS     NV2      X"),
                "topology_contradicts",
            ),
            (BRIDGED_PAIRS.replace("GPU1    NV4      X", "GPU1    NV4     NV4"), "topology_unreadable"),
            (BRIDGED_PAIRS.replace("GPU3    SYS     SYS", "GPU3    OK      SYS"), "topology_unreadable"),
            (BRIDGED_PAIRS.rsplit("GPU3", 1)[0], "topology_unreadable"),
            (BRIDGED_PAIRS.replace("GPU2    GPU3    NIC0", "GPU3    GPU2    NIC0"), "topology_unreadable"),
            (SWITCHED_OF_EIGHT, "contradicts"),
        ],
    )
    def test_text(self, topology: object, code: str) -> None:
        assert refusal(topology, "a40-48gb", 4) == ("cluster.intra_node.topology", code)

    @pytest.mark.parametrize(
        ("topology", "gpu", "gpus", "code"),
        [
            (BRIDGED_PAIRS, "rtx-4090-24gb", 4, "contradicts"),
            (mesh(8, "SYS"), "mi300x-192gb", 8, "contradicts"),
            (mesh(2, "NV18"), "a100-sxm4-80gb", 2, "contradicts"),
            (
                matrix([["X", "NV4", "SYS"], ["NV4", "X", "SYS"], ["SYS", "SYS", "X"]]),
                "a40-48gb",
                3,
                "topology_unsupported",
            ),
            (
                matrix([["X", "NV2", "SYS"], ["NV2", "X", "NV2"], ["SYS", "NV2", "X"]]),
                "a40-48gb",
                3,
                "topology_unsupported",
            ),
        ],
    )
    def test_what_cannot_be(self, topology: str, gpu: str, gpus: int, code: str) -> None:
        assert refusal(topology, gpu, gpus) == ("cluster.intra_node.topology", code)

    @pytest.mark.parametrize(
        ("stated", "field"),
        [
            ({"kind": "nvlink"}, "kind"),
            ({"nvlink_bridge": {"gpus": 4, "gb_per_s": 56}}, "nvlink_bridge.gpus"),
            ({"nvlink_bridge": {"gpus": 2, "gb_per_s": 112.5}}, "nvlink_bridge.gb_per_s"),
        ],
    )
    def test_stated_fields_agree(self, stated: dict[str, Any], field: str) -> None:
        assert refusal(BRIDGED_PAIRS, "a40-48gb", 4, **stated) == (f"cluster.intra_node.{field}", "contradicts")

    def test_stated_rate_and_path_agree(self) -> None:
        assert refusal(SWITCHED_OF_EIGHT, "h100-sxm5-80gb", 8, gb_per_s=900)[0] == "cluster.intra_node.gb_per_s"
        assert described(SWITCHED_OF_EIGHT, "h100-sxm5-80gb", 8, gb_per_s=440).intra_node.bytes_per_s == 440 * GB
        bridge = {"gpus": 2, "gb_per_s": 56}
        link = described(BRIDGED_PAIRS, "a40-48gb", 4, kind="pcie", nvlink_bridge=bridge).intra_node
        assert link.nvlink_bridge == NvlinkBridge(2, 56 * GB)
        host = {"memory_gib": 512, "pcie_shared_by": 2}
        assert refusal(FOUR_BEHIND_A_SWITCH, "l40s-48gb", 8, host) == ("cluster.host.pcie_shared_by", "contradicts")


class TestAnyText:
    """A link whose rate is a number above zero, or InvalidInput at a field of the request."""

    @given(st.text(alphabet=st.sampled_from("GPUNVX0123SY\t\n \x1b[4m"), max_size=200) | st.text())
    def test_letters(self, text: str) -> None:
        self._holds(text, 2)

    @given(st.data(), st.integers(1, 5), st.sampled_from(["a100-sxm4-80gb", "a40-48gb", "v100-sxm2-32gb", "t4-16gb"]))
    def test_words(self, data: st.DataObject, gpus: int, gpu: str) -> None:
        rows = [[data.draw(WORDS) for _ in range(gpus)] for _ in range(gpus)]
        for one in range(gpus):
            for other in range(one + 1):
                rows[one][other] = "X" if one == other else rows[other][one]
        self._holds(matrix(rows), gpus, gpu)

    def _holds(self, text: str, gpus: int, gpu: str = "a100-sxm4-80gb") -> None:
        try:
            link = described(text, gpu, gpus).intra_node
        except InvalidInput as refused:
            if refused.loc[:2] != ("cluster", "intra_node"):
                raise
            return
        assert link.bytes_per_s > 0
        assert link.nvlink_bridge is None or (link.kind == "pcie" and gpus % link.nvlink_bridge.gpus == 0)
        assert link.path_gpus is None or 1 <= link.path_gpus <= gpus
