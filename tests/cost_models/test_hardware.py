"""The hardware catalog against published figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.hardware import (
    cluster_catalog,
    cluster_preset_names,
    gpu_catalog,
    gpu_entry,
    gpu_names,
    load_gpu,
    similar_gpu,
)
from cost_models.cluster import Cluster
from cost_models.cluster_input import load_cluster_preset, resolve_cluster
from cost_models.errors import UnknownPreset
from cost_models.units import GB, GIB, GIGABIT_BYTES, TERA

CONTRACT_GPUS = """
v100-sxm2-16gb v100-sxm2-32gb t4-16gb a10-24gb a10g-24gb l4-24gb rtx-3090-24gb rtx-4090-24gb rtx-a6000-48gb a40-48gb
l40s-48gb a100-sxm4-40gb a100-sxm4-80gb a100-pcie-80gb a800-sxm4-80gb h100-sxm5-80gb h100-pcie-80gb h800-sxm5-80gb
h20-96gb h200-sxm5-141gb h200-nvl-141gb b200-sxm-180gb b300-sxm-270gb gb200-186gb gb300-279gb mi250x-64gb mi300x-192gb
mi325x-256gb mi350x-288gb mi355x-288gb gaudi2-96gb gaudi3-128gb ascend-910b-64gb
"""
CONTRACT_CLUSTERS = "dgx-a100 dgx-h100 dgx-h200 dgx-b200 gb200-nvl72 gb300-nvl72 p4d p5 mi300x-node"

# name, 16-bit, fp8, fp4, tf32 and fp32 dense TFLOPS (None: not supported), memory GB/s, watts, link GB/s one direction
DATASHEETS: list[
    tuple[str, float | None, float | None, float | None, float | None, float | None, float, float, float]
] = [
    ("a10-24gb", 125, None, None, 62.5, 31.2, 600, 150, 25),
    ("a10g-24gb", 70, None, None, 35, 35, 600, 300, 25),
    ("l4-24gb", 121, 242.5, None, 60, 30.3, 300, 72, 25),
    ("rtx-3090-24gb", 71, None, None, 35.6, 35.6, 936, 350, 25),
    ("rtx-4090-24gb", 165.2, 330.3, None, 82.6, 82.6, 1008, 450, 25),
    ("rtx-a6000-48gb", 154.8, None, None, 77.4, 38.7, 768, 300, 25),
    ("a40-48gb", 149.7, None, None, 74.8, 37.4, 696, 300, 25),
    ("l40s-48gb", 362.05, 733, None, 183, 91.6, 864, 350, 25),
    ("a100-sxm4-40gb", 312, None, None, 156, 19.5, 1555, 400, 300),
    ("a100-sxm4-80gb", 312, None, None, 156, 19.5, 2039, 400, 300),
    ("a100-pcie-80gb", 312, None, None, 156, 19.5, 1935, 300, 25),
    ("a800-sxm4-80gb", 312, None, None, 156, 19.5, 2039, 400, 200),
    ("h100-sxm5-80gb", 989.4, 1978.9, None, 494.7, 66.9, 3352, 700, 450),
    ("h100-pcie-80gb", 756, 1513, None, 378, 51.2, 2039, 350, 55),
    ("h800-sxm5-80gb", 989.4, 1978.9, None, 494.7, 66.9, 3352, 700, 200),
    ("h20-96gb", 148, 296, None, 74, 44, 4000, 400, 450),
    ("h200-sxm5-141gb", 989.4, 1978.9, None, 494.7, 66.9, 4800, 700, 450),
    ("h200-nvl-141gb", 835.5, 1670.5, None, 417.5, 60, 4800, 600, 55),
    ("b200-sxm-180gb", 2250, 4500, 9000, 1125, 75, 7700, 1000, 900),
    ("b300-sxm-270gb", 2250, 4500, 13500, 1125, 75, 7700, 1100, 900),
    ("gb200-186gb", 2500, 5000, 10000, 1250, 80, 8000, 1200, 900),
    ("gb300-279gb", 2500, 5000, 15000, 1250, 80, 8000, 1400, 900),
    ("mi250x-64gb", 191.5, None, None, None, 47.9, 1638, 250, 100),
    ("mi300x-192gb", 1307.4, 2614.9, None, 653.7, 163.4, 5300, 750, 448),
    ("mi325x-256gb", 1307.4, 2614.9, None, 653.7, 163.4, 6000, 1000, 448),
    ("mi350x-288gb", 2306.9, 4613.7, 9227.5, None, 144.2, 8000, 1000, 537.6),
    ("mi355x-288gb", 2516.6, 5033.2, 10066.3, None, 157.3, 8000, 1400, 537.6),
    ("ascend-910b-64gb", 376, None, None, None, 94, 1600, 400, 196),
]

# GiB that torch was seen to report, least and most
MEMORY_SEEN_GIB = [
    ("v100-sxm2-16gb", 15.75, 15.8),
    ("v100-sxm2-32gb", 31.74, 31.75),
    ("t4-16gb", 14.57, 14.76),
    ("a10-24gb", 22.03, 22.09),
    ("l4-24gb", 22.03, 22.03),
    ("rtx-3090-24gb", 23.68, 23.7),
    ("rtx-4090-24gb", 23.64, 23.65),
    ("rtx-a6000-48gb", 47.53, 47.54),
    ("a40-48gb", 44.34, 44.53),
    ("l40s-48gb", 44.39, 44.53),
    ("a100-sxm4-40gb", 39.39, 39.6),
    ("a100-sxm4-80gb", 79.14, 79.33),
    ("h100-sxm5-80gb", 79.1, 79.65),
    ("h20-96gb", 95.0, 95.22),
    ("h200-sxm5-141gb", 139.7, 139.81),
    ("b200-sxm-180gb", 178.35, 178.4),
    ("b300-sxm-270gb", 267.69, 267.69),
    ("gb200-186gb", 184.31, 184.31),
    ("gb300-279gb", 276.5, 276.5),
    ("mi250x-64gb", 63.98, 63.98),
    ("mi300x-192gb", 191.98, 192.0),
    ("mi325x-256gb", 255.98, 255.98),
    ("mi355x-288gb", 287.98, 287.98),
    ("gaudi2-96gb", 94.62, 94.62),
    ("ascend-910b-64gb", 60.96, 61.0),
]


def figures_left_out(cluster: Cluster) -> set[str]:
    """Paths of the fields that the assumptions list as left out."""
    return {line.split(" left out: ")[0] for line in cluster.assumptions if " left out: " in line}


# Multiprocessors (compute units, matrix engines), boost clock in MHz, FLOP of one of them a clock: what the whitepapers
# make the datasheets' peaks of. Fused multiply-adds of 16 bit with fp32 sums: Volta and Turing 512 a multiprocessor,
# A100 1,024, H100 2,048, B200 4,096; GA102 and AD102 for data centres 512, GeForce and A10G half of that; CDNA 2, 3
# and 4 512, 1,024 and 2,048; a matrix engine of Gaudi 256 x 256.
MATRIX_UNITS = [
    ("v100-sxm2-32gb", 80, 1530, 1024),
    ("t4-16gb", 40, 1590, 1024),
    ("a10-24gb", 72, 1695, 1024),
    ("a10g-24gb", 80, 1710, 512),
    ("l4-24gb", 58, 2040, 1024),
    ("rtx-3090-24gb", 82, 1695, 512),
    ("rtx-4090-24gb", 128, 2520, 512),
    ("rtx-a6000-48gb", 84, 1800, 1024),
    ("a40-48gb", 84, 1740, 1024),
    ("l40s-48gb", 142, 2490, 1024),
    ("a100-sxm4-80gb", 108, 1410, 2048),
    ("h100-sxm5-80gb", 132, 1830, 4096),
    ("h100-pcie-80gb", 114, 1620, 4096),
    ("b200-sxm-180gb", 148, 1855, 8192),
    ("mi250x-64gb", 110, 1700, 1024),
    ("mi300x-192gb", 304, 2100, 2048),
    ("mi325x-256gb", 304, 2100, 2048),
    ("mi350x-288gb", 256, 2200, 4096),
    ("mi355x-288gb", 256, 2400, 4096),
    ("gaudi2-96gb", 2, 1650, 2 * 256 * 256),
    ("gaudi3-128gb", 8, 1600, 2 * 256 * 256),
]

# Bits of the memory bus and Gbit/s of a pin, as the same papers have them.
MEMORY_BUSES = [
    ("v100-sxm2-32gb", 4096, 1.754),
    ("t4-16gb", 256, 10),
    ("a10-24gb", 384, 12.5),
    ("l4-24gb", 192, 12.5),
    ("rtx-3090-24gb", 384, 19.5),
    ("rtx-4090-24gb", 384, 21),
    ("rtx-a6000-48gb", 384, 16),
    ("a40-48gb", 384, 14.5),
    ("l40s-48gb", 384, 18),
    ("a100-sxm4-40gb", 5120, 2.43),
    ("a100-sxm4-80gb", 5120, 3.186),
    ("a100-pcie-80gb", 5120, 3.024),
    ("h100-sxm5-80gb", 5120, 5.238),
    ("h100-pcie-80gb", 5120, 3.186),
    ("h200-sxm5-141gb", 6144, 6.25),
    ("b200-sxm-180gb", 7680, 7.992),
    ("b300-sxm-270gb", 7680, 7.992),
    ("gb200-186gb", 7936, 7.992),
    ("gb300-279gb", 7936, 7.992),
    ("mi250x-64gb", 4096, 3.2),
    ("mi300x-192gb", 8192, 5.2),
    ("mi325x-256gb", 8192, 6),
    ("mi355x-288gb", 8192, 8),
    ("gaudi2-96gb", 6144, 3.2),
    ("gaudi3-128gb", 8192, 3.6),
]


class TestGpuCatalog:
    def test_it_holds_every_gpu_of_the_contract(self) -> None:
        assert set(CONTRACT_GPUS.split()) <= set(gpu_names())

    @pytest.mark.parametrize("row", DATASHEETS, ids=lambda row: row[0])
    def test_datasheet_figures(
        self, row: tuple[str, float | None, float | None, float | None, float | None, float | None, float, float, float]
    ) -> None:
        name, half, fp8, fp4, tf32, fp32, memory_gb_per_s, watts, link_gb_per_s = row
        gpu, entry = load_gpu(name), gpu_entry(name)
        expected = {"bf16": half, "fp16": half, "fp8": fp8, "fp4": fp4, "tf32": tf32, "fp32": fp32}
        assert gpu.peak_flops_per_s == {key: value * TERA for key, value in expected.items() if value is not None}
        assert gpu.memory_bytes_per_s == memory_gb_per_s * GB
        assert gpu.tdp_watts == watts
        assert entry.link_bytes_per_s == link_gb_per_s * GB
        assert gpu.flash_attention is True

    @pytest.mark.parametrize(
        ("name", "fp16", "fp32", "memory_gb_per_s", "watts"),
        [
            ("v100-sxm2-16gb", 125, 15.7, 900, 300),
            ("v100-sxm2-32gb", 125, 15.7, 900, 300),
            ("t4-16gb", 65, 8.1, 320, 70),
        ],
    )
    def test_old_gpus_have_neither_bf16_nor_flash_attention(
        self, name: str, fp16: float, fp32: float, memory_gb_per_s: float, watts: float
    ) -> None:
        gpu = load_gpu(name)
        assert gpu.peak_flops_per_s == {"fp16": fp16 * TERA, "fp32": fp32 * TERA}
        assert (gpu.memory_bytes_per_s, gpu.tdp_watts) == (memory_gb_per_s * GB, watts)
        assert not gpu.supports("bf16")
        assert not gpu.flash_attention

    @pytest.mark.parametrize(
        ("name", "peaks", "link"),
        [
            ("gaudi2-96gb", {"bf16": 432, "fp8": 865}, 262.5),
            ("gaudi3-128gb", {"bf16": 1678, "fp16": 459, "fp8": 1678, "tf32": 459, "fp32": 229}, 525),
        ],
    )
    def test_gaudi_scales_up_over_its_own_ports(self, name: str, peaks: dict[str, float], link: float) -> None:
        assert load_gpu(name).peak_flops_per_s == {precision: peak * TERA for precision, peak in peaks.items()}
        assert gpu_entry(name).link_bytes_per_s == link * GB

    @pytest.mark.parametrize(("name", "cores", "megahertz", "operations"), MATRIX_UNITS)
    def test_16_bit_peaks_are_cores_times_clock_times_operations_of_a_clock(
        self, name: str, cores: int, megahertz: float, operations: int
    ) -> None:
        gpu, peaks = load_gpu(name), load_gpu(name).peak_flops_per_s
        assert gpu.multiprocessors == cores or "gaudi" in name  # whose matrix engines are not its processor cores
        assert peaks["bf16" if "bf16" in peaks else "fp16"] == pytest.approx(
            cores * megahertz * 1e6 * operations, rel=0.012
        )

    @pytest.mark.parametrize(("name", "bits", "gigabits_per_pin"), MEMORY_BUSES)
    def test_memory_bandwidth_is_the_bus_times_its_rate(self, name: str, bits: int, gigabits_per_pin: float) -> None:
        expected = bits * gigabits_per_pin * GIGABIT_BYTES
        assert load_gpu(name).memory_bytes_per_s == pytest.approx(expected, rel=0.025)

    @pytest.mark.parametrize(("name", "least", "most"), MEMORY_SEEN_GIB)
    def test_memory_is_what_torch_reports(self, name: str, least: float, most: float) -> None:
        assert least <= load_gpu(name).memory_bytes / GIB <= most

    @pytest.mark.parametrize("name", gpu_names())
    def test_memory_is_below_the_marketing_figure(self, name: str) -> None:
        gib_of_the_name = float(name.rsplit("-", 1)[1].removesuffix("gb"))
        assert 0.9 * gib_of_the_name < load_gpu(name).memory_bytes / GIB < gib_of_the_name

    @pytest.mark.parametrize(
        ("name", "kind", "gbps"),
        [
            ("v100-sxm2-32gb", "infiniband", 100),
            ("a100-sxm4-80gb", "infiniband", 200),
            ("a100-pcie-80gb", "infiniband", 200),
            ("h100-sxm5-80gb", "infiniband", 400),
            ("b200-sxm-180gb", "infiniband", 400),
            ("gb200-186gb", "infiniband", 400),
            ("b300-sxm-270gb", "infiniband", 800),
            ("gb300-279gb", "infiniband", 800),
            ("mi300x-192gb", "roce", 400),
            ("rtx-4090-24gb", "ethernet", 12.5),
        ],
    )
    def test_usual_fabric_of_a_host_of_eight(self, name: str, kind: str, gbps: float) -> None:
        fabric = gpu_entry(name).fabric
        assert (fabric.kind, fabric.bytes_per_s(8)) == (kind, gbps * GIGABIT_BYTES)

    @pytest.mark.parametrize(
        ("names", "chips"),
        [
            ("a100-sxm4-40gb a100-sxm4-80gb a100-pcie-80gb a800-sxm4-80gb", 1),
            ("h100-sxm5-80gb h100-pcie-80gb h800-sxm5-80gb h20-96gb h200-sxm5-141gb h200-nvl-141gb", 1),
            ("a10-24gb a10g-24gb rtx-3090-24gb rtx-a6000-48gb a40-48gb", 1),
            ("b200-sxm-180gb gb200-186gb", 1),
            ("a100-sxm4-80gb a10-24gb h100-sxm5-80gb b200-sxm-180gb b300-sxm-270gb l4-24gb l40s-48gb mi300x-192gb", 8),
        ],
    )
    def test_gpus_of_one_silicon(self, names: str, chips: int) -> None:
        assert len({load_gpu(name).chip for name in names.split()}) == chips

    def test_only_geforce_lacks_peer_to_peer(self) -> None:
        without = {name for name in gpu_names() if not gpu_entry(name).peer_to_peer}
        assert without == {"rtx-3090-24gb", "rtx-4090-24gb"}

    def test_an_unknown_name_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(UnknownPreset, match="h100-sxm5-80gb") as raised:
            load_gpu("H100-SXM-80GB")
        assert (raised.value.loc, raised.value.code) == (("cluster", "gpu"), "unknown_gpu")

    @pytest.mark.parametrize(
        ("free_form", "known"),
        [
            ("h100-96gb-hbm2e-500w", "h100-sxm5-80gb"),
            ("NVIDIA H100 NVL", "h100-pcie-80gb"),
            ("NVIDIA A100-PCIE-40GB", "a100-pcie-80gb"),
            ("GeForce RTX 4090 D", "rtx-4090-24gb"),
            ("Ascend 910B3", None),
            ("RTX 5090", None),
            ("a100 or h100", None),
        ],
    )
    def test_relatives_by_name(self, free_form: str, known: str | None) -> None:
        entry = similar_gpu(free_form)
        assert (entry and entry.gpu.name) == known

    def test_the_listing_speaks_the_contracts_units(self) -> None:
        listed = {entry["name"]: entry for entry in gpu_catalog()}
        h100 = listed["h100-sxm5-80gb"]
        assert list(listed) == list(gpu_names())
        assert (h100["memory_gib"], h100["memory_gb_per_s"], h100["tdp_watts"]) == (79.2, 3352, 700)
        assert h100["peak_tflops"]["bf16"] == 989.4
        assert h100["intra_node"] == {"kind": "nvlink", "gb_per_s": 450, "peer_to_peer": True}
        assert h100["inter_node"] == {"kind": "infiniband", "gbps_per_gpu": 400, "gbps_per_host": None}
        assert listed["l4-24gb"]["inter_node"] == {"kind": "ethernet", "gbps_per_gpu": None, "gbps_per_host": 100}
        assert all(len(entry["source"]) > 20 and entry["memory_source"] for entry in listed.values())


class TestClusterPresets:
    def test_it_holds_every_cluster_of_the_contract(self) -> None:
        assert set(CONTRACT_CLUSTERS.split()) <= set(cluster_preset_names())

    @pytest.mark.parametrize(
        ("name", "gpu", "gpus_per_node", "link", "intra_gb_per_s", "fabric", "gbps", "memory_gib", "usd"),
        [
            ("dgx-a100", "a100-sxm4-80gb", 8, "nvlink", 300, "infiniband", 200, 2048, None),
            ("dgx-h100", "h100-sxm5-80gb", 8, "nvlink", 450, "infiniband", 400, 2048, None),
            ("dgx-h200", "h200-sxm5-141gb", 8, "nvlink", 450, "infiniband", 400, 2048, None),
            ("dgx-b200", "b200-sxm-180gb", 8, "nvlink", 900, "infiniband", 400, 2048, None),
            ("gb200-nvl72", "gb200-186gb", 4, "nvlink", 900, "infiniband", 400, 894, None),
            ("gb300-nvl72", "gb300-279gb", 4, "nvlink", 900, "infiniband", 800, 894, None),
            ("p4d", "a100-sxm4-40gb", 8, "nvlink", 300, "efa", 50, 1152, 2.7447),
            ("p5", "h100-sxm5-80gb", 8, "nvlink", 450, "efa", 400, 2048, 6.88),
            ("mi300x-node", "mi300x-192gb", 8, "xgmi", 448, "infiniband", 400, 1850, None),
        ],
    )
    def test_published_figures(
        self,
        name: str,
        gpu: str,
        gpus_per_node: int,
        link: str,
        intra_gb_per_s: float,
        fabric: str,
        gbps: float,
        memory_gib: float,
        usd: float | None,
    ) -> None:
        cluster = load_cluster_preset(name, 8)
        assert cluster.host is not None
        assert (cluster.gpu, cluster.gpus_per_node, cluster.nodes) == (load_gpu(gpu), gpus_per_node, 8)
        assert (cluster.intra_node.kind, cluster.intra_node.bytes_per_s) == (link, intra_gb_per_s * GB)
        assert (cluster.inter_node.kind, cluster.inter_node.bytes_per_s) == (fabric, gbps * GIGABIT_BYTES)
        assert cluster.host.memory_bytes == memory_gib * GIB
        assert cluster.usd_per_gpu_hour == usd
        assert cluster.name is None

    def test_the_assumptions_say_what_a_preset_stands_for(self) -> None:
        cluster = resolve_cluster({"preset": "p5", "nodes": 4})
        stated = cluster.assumptions[0]
        assert stated.startswith("cluster preset p5: 8 x h100-sxm5-80gb a host; nvlink 450 GB/s and efa 400 Gb/s a GPU")
        assert "6.88 USD a GPU hour" in stated
        assert figures_left_out(cluster) == {"cluster.nvlink_domain_gpus"}

    @pytest.mark.parametrize(("nodes", "domain"), [(1, 4), (16, 64), (17, 68), (18, 72), (32, 64), (36, 72), (54, 72)])
    def test_nvl72_domains_are_equal_shares_of_racks(self, nodes: int, domain: int) -> None:
        cluster = load_cluster_preset("gb200-nvl72", nodes)
        assert cluster.nvlink_domain_gpus == domain
        assert "cluster.nvlink_domain_gpus" in figures_left_out(cluster)

    def test_the_listing_is_the_contracts_shape(self) -> None:
        listed = {entry["preset"]: entry for entry in cluster_catalog()}
        assert listed["dgx-h100"]["host"]["memory_gib"] == 2048
        assert listed["gb200-nvl72"]["rack_gpus"] == 72
        assert all(len(entry["source"]) > 20 for entry in listed.values())


@given(st.sampled_from(cluster_preset_names()), st.integers(1, 5000))
def test_presets_resolve_at_any_size(name: str, nodes: int) -> None:
    cluster = load_cluster_preset(name, nodes)
    assert cluster.gpus % cluster.nvlink_domain_gpus == 0
    assert cluster.nvlink_domain_gpus % cluster.gpus_per_node == 0
    assert cluster.nvlink_domain_gpus <= 72
