"""The resolution of clusters: defaults, refusals and properties."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.hardware import gpu_names, load_gpu
from cost_models.cluster import Cluster, InterNodeLink, IntraNodeLink, MeasuredBandwidth, NvlinkBridge
from cost_models.cluster_input import resolve_cluster
from cost_models.errors import InvalidInput
from cost_models.units import GB, GIB, GIGABIT_BYTES, TERA

FULL: dict[str, Any] = {
    "name": "prod-a",
    "nodes": 8,
    "gpus_per_node": 8,
    "gpu": "h100-sxm5-80gb",
    "nvlink_domain_gpus": 8,
    "intra_node": {"kind": "nvlink", "gb_per_s": 450, "peer_to_peer": True, "nvlink_bridge": None},
    "inter_node": {
        "kind": "infiniband",
        "gbps_per_gpu": 400,
        "oversubscription": 1.0,
        "measured": [{"collective": "all_reduce", "nodes": 8, "bytes": 1073741824, "bus_gb_per_s": 99.6}],
    },
    "host": {
        "memory_gib": 2048,
        "memory_gb_per_s": 600,
        "cpu_cores": 112,
        "pcie_gb_per_s": 55,
        "pcie_shared_by": 1,
        "cxl_gib": 0,
        "cxl_gb_per_s": 0,
        "nvme_gib": 30000,
        "nvme_read_gb_per_s": 25,
        "nvme_write_gb_per_s": 12,
    },
    "gpu_free_memory_gib": None,
    "usd_per_gpu_hour": 2.5,
}
CUSTOM_GPU: dict[str, Any] = {
    "name": "h100-96gb-hbm2e-500w",
    "memory_gib": 94.5,
    "memory_gb_per_s": 2400,
    "peak_tflops": {"bf16": 989, "fp16": 989, "fp32": 67, "fp8": 1979},
    "tdp_watts": 500,
}
UNKNOWN_GPU: dict[str, Any] = {**CUSTOM_GPU, "name": "accelerator-x"}
MINIMAL: dict[str, Any] = {"nodes": 2, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}


def figures_left_out(cluster: Cluster) -> set[str]:
    """Paths of the fields that the assumptions list as left out."""
    return {line.split(" left out: ")[0] for line in cluster.assumptions if " left out: " in line}


def as_input(cluster: Cluster) -> dict[str, Any]:
    """The ClusterInput that states every figure of a resolved cluster."""
    gpu, intra, inter, host = cluster.gpu, cluster.intra_node, cluster.inter_node, cluster.host
    bridge = intra.nvlink_bridge
    return {
        "name": cluster.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "gpu": gpu.name
        if gpu.name in gpu_names()
        else {
            "name": gpu.name,
            "memory_gib": gpu.memory_bytes / GIB,
            "memory_gb_per_s": gpu.memory_bytes_per_s / GB,
            "peak_tflops": {precision: peak / TERA for precision, peak in gpu.peak_flops_per_s.items()},
            "tdp_watts": gpu.tdp_watts,
        },
        "nvlink_domain_gpus": cluster.nvlink_domain_gpus,
        "intra_node": {
            "kind": intra.kind,
            "gb_per_s": intra.bytes_per_s / GB,
            "peer_to_peer": intra.peer_to_peer,
            "nvlink_bridge": bridge and {"gpus": bridge.gpus, "gb_per_s": bridge.bytes_per_s / GB},
            "switched": intra.mesh_gpus is None,
        },
        "inter_node": {
            "kind": inter.kind,
            "gbps_per_gpu": inter.bytes_per_s / GIGABIT_BYTES,
            "oversubscription": inter.oversubscription,
        },
        "host": host
        and {
            "memory_gib": host.memory_bytes / GIB,
            "memory_gb_per_s": host.memory_bytes_per_s / GB,
            "cpu_cores": host.cpu_cores,
            "pcie_gb_per_s": host.pcie_bytes_per_s / GB,
            "pcie_shared_by": host.pcie_shared_by,
            "cxl_gib": host.cxl_bytes / GIB,
            "cxl_gb_per_s": host.cxl_bytes_per_s / GB,
            "nvme_gib": host.nvme_bytes / GIB,
            "nvme_read_gb_per_s": host.nvme_read_bytes_per_s / GB,
            "nvme_write_gb_per_s": host.nvme_write_bytes_per_s / GB,
        },
        "gpu_free_memory_gib": cluster.gpu_free_memory_bytes and cluster.gpu_free_memory_bytes / GIB,
        "usd_per_gpu_hour": cluster.usd_per_gpu_hour,
    }


def flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, by path."""
    paths: dict[str, Any] = {}
    for name, value in fields.items():
        paths |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return paths


class TestDefaults:
    def test_the_contracts_example_leaves_nothing_out(self) -> None:
        cluster = resolve_cluster(FULL)
        assert cluster.assumptions == ()
        assert (cluster.name, cluster.gpus, cluster.nvlink_domain_gpus) == ("prod-a", 64, 8)
        assert cluster.intra_node == IntraNodeLink("nvlink", 450 * GB)
        assert cluster.inter_node == InterNodeLink(
            "infiniband", 50 * GB, 1.0, (MeasuredBandwidth("all_reduce", 8, 2**30, 99.6 * GB),)
        )
        assert cluster.host is not None
        assert (cluster.host.nvme_bytes, cluster.host.nvme_write_bytes_per_s) == (30000 * GIB, 12 * GB)
        assert cluster.usd_per_gpu_hour == 2.5
        assert cluster.capacity_bytes == load_gpu("h100-sxm5-80gb").memory_bytes

    def test_every_default_of_a_minimal_cluster_is_listed(self) -> None:
        cluster = resolve_cluster(MINIMAL)
        assert figures_left_out(cluster) == {
            "cluster.intra_node.kind",
            "cluster.intra_node.gb_per_s",
            "cluster.intra_node.peer_to_peer",
            "cluster.nvlink_domain_gpus",
            "cluster.inter_node.kind",
            "cluster.inter_node.gbps_per_gpu",
            "cluster.inter_node.oversubscription",
            "cluster.host",
        }
        assert cluster.host is None
        assert cluster.nvlink_domain_gpus == 8
        assert (cluster.intra_node.kind, cluster.intra_node.bytes_per_s) == ("nvlink", 450 * GB)
        assert (cluster.inter_node.kind, cluster.inter_node.bytes_per_s) == ("infiniband", 50 * GB)

    def test_one_host_does_not_list_the_fabric(self) -> None:
        left_out = figures_left_out(resolve_cluster({**MINIMAL, "nodes": 1}))
        assert not any(path.startswith("cluster.inter_node") for path in left_out)

    def test_one_rack_does_not_list_the_fabric(self) -> None:
        rack = {"nodes": 16, "gpus_per_node": 4, "gpu": "gb200-186gb", "nvlink_domain_gpus": 64}
        assert not any(path.startswith("cluster.inter_node") for path in figures_left_out(resolve_cluster(rack)))

    def test_one_gpu_lists_only_the_unknown_host(self) -> None:
        cluster = resolve_cluster({"nodes": 1, "gpus_per_node": 1, "gpu": "rtx-4090-24gb"})
        assert figures_left_out(cluster) == {"cluster.host"}

    def test_links_without_a_switch_say_so(self) -> None:
        for gpu, gpus_per_node, mesh in (("mi300x-192gb", 8, 8), ("ascend-910b-64gb", 4, 8), ("v100-sxm2-32gb", 4, 4)):
            cluster = resolve_cluster({"nodes": 1, "gpus_per_node": gpus_per_node, "gpu": gpu})
            assert cluster.intra_node.mesh_gpus == mesh
            assert "cluster.intra_node.switched" in figures_left_out(cluster)
        given = {"nodes": 1, "gpus_per_node": 16, "gpu": "v100-sxm2-32gb", "intra_node": {"switched": True}}
        assert resolve_cluster(given).intra_node.mesh_gpus is None

    def test_geforce_has_pcie_without_peer_to_peer_and_a_domain_of_one(self) -> None:
        cluster = resolve_cluster({"nodes": 2, "gpus_per_node": 4, "gpu": "rtx-3090-24gb"})
        assert cluster.intra_node == IntraNodeLink("pcie", 25 * GB, peer_to_peer=False)
        assert cluster.nvlink_domain_gpus == 1
        assert (cluster.inter_node.kind, cluster.inter_node.bytes_per_s) == ("ethernet", 25 * GIGABIT_BYTES)

    @pytest.mark.parametrize(("gpus", "behind_a_switch"), [(2, 1), (4, 1), (8, 4), (10, 5)])
    def test_many_cards_without_peer_to_peer_share_a_path_to_the_host(self, gpus: int, behind_a_switch: int) -> None:
        fields = {"nodes": 1, "gpus_per_node": gpus, "gpu": "rtx-3090-24gb"}
        assert resolve_cluster(fields).host_path_gpus == behind_a_switch
        assert resolve_cluster({**fields, "host": {"memory_gib": 64}}).host_path_gpus == behind_a_switch
        assert resolve_cluster({**fields, "host": {"memory_gib": 64, "pcie_shared_by": 2}}).host_path_gpus == 2
        assert resolve_cluster({**fields, "gpu": "l40s-48gb"}).host_path_gpus == 1

    def test_an_nvlink_module_may_be_wired_over_pcie(self) -> None:
        cluster = resolve_cluster({**MINIMAL, "intra_node": {"kind": "pcie"}})
        assert cluster.intra_node.bytes_per_s == 55 * GB
        assert cluster.nvlink_domain_gpus == 1

    def test_a_bridge_beside_pcie(self) -> None:
        bridged = {"kind": "pcie", "nvlink_bridge": {"gpus": 2, "gb_per_s": 56}}
        cluster = resolve_cluster({"nodes": 1, "gpus_per_node": 4, "gpu": "rtx-a6000-48gb", "intra_node": bridged})
        assert cluster.intra_node.nvlink_bridge == NvlinkBridge(2, 56 * GB)

    def test_a_partly_described_host_takes_the_rest_from_the_generation(self) -> None:
        cluster = resolve_cluster({**FULL, "host": {"memory_gib": 1024}})
        assert cluster.host is not None
        assert (cluster.host.memory_bytes, cluster.host.memory_bytes_per_s) == (1024 * GIB, 614.4 * GB)
        assert (cluster.host.cpu_cores, cluster.host.pcie_bytes_per_s, cluster.host.pcie_shared_by) == (112, 55 * GB, 1)
        assert (cluster.host.nvme_bytes, cluster.host.cxl_bytes) == (0, 0)
        assert figures_left_out(cluster) == {
            f"cluster.host.{field}"
            for field in ("memory_gb_per_s", "cpu_cores", "pcie_gb_per_s", "pcie_shared_by", "nvme_gib", "cxl_gib")
        }

    def test_others_on_the_card_lower_its_capacity(self) -> None:
        assert resolve_cluster({**MINIMAL, "gpu_free_memory_gib": 60}).capacity_bytes == 60 * GIB

    def test_repeated_measurements_count_once(self) -> None:
        point = FULL["inter_node"]["measured"][0]
        cluster = resolve_cluster({**FULL, "inter_node": {**FULL["inter_node"], "measured": [point, dict(point)]}})
        assert len(cluster.inter_node.measured) == 1

    def test_a_described_relative_takes_generation_and_links(self) -> None:
        cluster = resolve_cluster({**MINIMAL, "gpu": CUSTOM_GPU})
        assert cluster.gpu.generation == "hopper"
        assert cluster.gpu.memory_bytes == 94.5 * GIB
        assert cluster.gpu.peak_flops_per_s == {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "fp32": 67e12}
        assert cluster.intra_node.bytes_per_s == 450 * GB
        assert any("relative of h100-sxm5-80gb" in line for line in cluster.assumptions)

    def test_a_relative_lends_its_power(self) -> None:
        gpu = {key: value for key, value in CUSTOM_GPU.items() if key != "tdp_watts"}
        cluster = resolve_cluster({**MINIMAL, "gpu": gpu})
        assert cluster.gpu.tdp_watts == 700
        assert "cluster.gpu.tdp_watts" in figures_left_out(cluster)

    def test_an_unknown_gpu_alone_needs_no_links(self) -> None:
        cluster = resolve_cluster({"nodes": 1, "gpus_per_node": 1, "gpu": UNKNOWN_GPU})
        assert cluster.gpu.generation is None
        assert any("no known generation" in line for line in cluster.assumptions)


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def point(**changed: Any) -> dict[str, Any]:
    return {"collective": "all_reduce", "nodes": 8, "bytes": 1 << 30, "bus_gb_per_s": 99.6, **changed}


REFUSALS: list[tuple[object, tuple[str | int, ...], str]] = [
    ("dgx-h100", (), "not_an_object"),
    ({"preset": "dgx-h1000", "nodes": 8}, ("preset",), "unknown_preset"),
    ({"preset": "dgx-h100"}, ("nodes",), "missing"),
    ({"preset": "dgx-h100", "nodes": 0}, ("nodes",), "too_small"),
    ({"preset": 7, "nodes": 1}, ("preset",), "not_a_name"),
    ({"preset": "dgx-h100", "nodes": 8, "gpu": "t4-16gb"}, ("gpu",), "not_with_preset"),
    ({**MINIMAL, "racks": 2}, ("racks",), "unknown_field"),
    (without(MINIMAL, "nodes"), ("nodes",), "missing"),
    (without(MINIMAL, "gpus_per_node"), ("gpus_per_node",), "missing"),
    (without(MINIMAL, "gpu"), ("gpu",), "missing"),
    ({**MINIMAL, "nodes": -1}, ("nodes",), "too_small"),
    ({**MINIMAL, "nodes": 10**30}, ("nodes",), "too_large"),
    ({**MINIMAL, "nodes": 10**5000}, ("nodes",), "too_large"),
    ({**MINIMAL, "name": "a\x00b"}, ("name",), "not_a_name"),
    ({**MINIMAL, "nodes": 2.5}, ("nodes",), "not_an_integer"),
    ({**MINIMAL, "nodes": True}, ("nodes",), "not_an_integer"),
    ({**MINIMAL, "gpus_per_node": 0}, ("gpus_per_node",), "too_small"),
    ({**MINIMAL, "name": ""}, ("name",), "not_a_name"),
    ({**MINIMAL, "gpu": "h100"}, ("gpu",), "unknown_gpu"),
    ({**MINIMAL, "gpu": 100}, ("gpu",), "not_an_object"),
    ({**MINIMAL, "gpu": ["a100-sxm4-80gb", "h100-sxm5-80gb"]}, ("gpu",), "mixed_gpus_unsupported"),
    ({**MINIMAL, "gpu": "a100-sxm4-80gb+h100-sxm5-80gb"}, ("gpu",), "mixed_gpus_unsupported"),
    ({**MINIMAL, "gpu": "rtx-3090-24gb, rtx-4090-24gb"}, ("gpu",), "mixed_gpus_unsupported"),
    ({**MINIMAL, "gpu": without(CUSTOM_GPU, "name")}, ("gpu", "name"), "missing"),
    ({**MINIMAL, "gpu": without(CUSTOM_GPU, "memory_gib")}, ("gpu", "memory_gib"), "missing"),
    ({**MINIMAL, "gpu": without(CUSTOM_GPU, "memory_gb_per_s")}, ("gpu", "memory_gb_per_s"), "missing"),
    ({**MINIMAL, "gpu": without(CUSTOM_GPU, "peak_tflops")}, ("gpu", "peak_tflops"), "missing"),
    ({**MINIMAL, "gpu": without(UNKNOWN_GPU, "tdp_watts")}, ("gpu", "tdp_watts"), "missing"),
    ({**MINIMAL, "gpu": {**CUSTOM_GPU, "memory_gib": math.nan}}, ("gpu", "memory_gib"), "not_a_number"),
    ({**MINIMAL, "gpu": {**CUSTOM_GPU, "memory_gib": 0}}, ("gpu", "memory_gib"), "too_small"),
    ({**MINIMAL, "gpu": {**CUSTOM_GPU, "memory_gb_per_s": math.inf}}, ("gpu", "memory_gb_per_s"), "too_large"),
    ({**MINIMAL, "gpu": {**CUSTOM_GPU, "peak_tflops": {"bf16": -1}}}, ("gpu", "peak_tflops", "bf16"), "too_small"),
    ({**MINIMAL, "gpu": {**CUSTOM_GPU, "peak_tflops": {"int8": 1}}}, ("gpu", "peak_tflops", "int8"), "unknown_field"),
    ({**MINIMAL, "gpu": UNKNOWN_GPU}, ("intra_node", "kind"), "missing"),
    ({**MINIMAL, "gpu": UNKNOWN_GPU, "intra_node": {"kind": "nvlink"}}, ("intra_node", "gb_per_s"), "missing"),
    ({**MINIMAL, "gpu": UNKNOWN_GPU, "intra_node": FULL["intra_node"]}, ("inter_node", "kind"), "missing"),
    (
        {**MINIMAL, "gpu": UNKNOWN_GPU, "intra_node": FULL["intra_node"], "inter_node": {"kind": "roce"}},
        ("inter_node", "gbps_per_gpu"),
        "missing",
    ),
    ({**FULL, "gpu": UNKNOWN_GPU, "host": {"memory_gib": 64}}, ("host", "memory_gb_per_s"), "missing"),
    ({**MINIMAL, "nvlink_domain_gpus": 0}, ("nvlink_domain_gpus",), "too_small"),
    ({**MINIMAL, "nvlink_domain_gpus": 32}, ("nvlink_domain_gpus",), "too_large"),
    ({**MINIMAL, "nvlink_domain_gpus": 12}, ("nvlink_domain_gpus",), "domain_not_divisible"),
    ({**MINIMAL, "nodes": 3, "nvlink_domain_gpus": 16}, ("nvlink_domain_gpus",), "domain_not_divisible"),
    ({**MINIMAL, "gpu": "l4-24gb", "nvlink_domain_gpus": 16}, ("nvlink_domain_gpus",), "domain_not_divisible"),
    ({**MINIMAL, "intra_node": {"kind": "infiniband"}}, ("intra_node", "kind"), "not_a_choice"),
    ({**MINIMAL, "intra_node": {"kind": ["nvlink"]}}, ("intra_node", "kind"), "not_a_choice"),
    ({**MINIMAL, "intra_node": {"kind": "xgmi"}}, ("intra_node", "gb_per_s"), "missing"),
    ({**MINIMAL, "gpu": "h100-pcie-80gb", "intra_node": {"kind": "nvlink"}}, ("intra_node", "gb_per_s"), "missing"),
    ({**MINIMAL, "intra_node": {"gb_per_s": 0}}, ("intra_node", "gb_per_s"), "too_small"),
    ({**MINIMAL, "intra_node": {"peer_to_peer": 1}}, ("intra_node", "peer_to_peer"), "not_a_boolean"),
    (
        {**MINIMAL, "intra_node": {"nvlink_bridge": {"gpus": 2, "gb_per_s": 56}}},
        ("intra_node", "nvlink_bridge"),
        "bridge_needs_pcie",
    ),
    (
        {**MINIMAL, "intra_node": {"kind": "pcie", "nvlink_bridge": {"gpus": 3, "gb_per_s": 56}}},
        ("intra_node", "nvlink_bridge", "gpus"),
        "bridge_not_divisible",
    ),
    (
        {**MINIMAL, "intra_node": {"kind": "pcie", "nvlink_bridge": {"gb_per_s": 56}}},
        ("intra_node", "nvlink_bridge", "gpus"),
        "missing",
    ),
    (
        {**MINIMAL, "intra_node": {"kind": "pcie", "nvlink_bridge": {"gpus": 2}}},
        ("intra_node", "nvlink_bridge", "gb_per_s"),
        "missing",
    ),
    ({**MINIMAL, "inter_node": {"kind": "ethernet"}}, ("inter_node", "gbps_per_gpu"), "missing"),
    ({**MINIMAL, "nodes": 1, "inter_node": {"kind": "ethernet"}}, ("inter_node", "gbps_per_gpu"), "missing"),
    ({**MINIMAL, "inter_node": {"gbps_per_gpu": "400"}}, ("inter_node", "gbps_per_gpu"), "not_a_number"),
    ({**MINIMAL, "inter_node": {"oversubscription": 0.5}}, ("inter_node", "oversubscription"), "too_small"),
    ({**MINIMAL, "inter_node": {"measured": {}}}, ("inter_node", "measured"), "not_a_list"),
    ({**MINIMAL, "inter_node": {"measured": [3]}}, ("inter_node", "measured", 0), "not_an_object"),
    (
        {**MINIMAL, "inter_node": {"measured": [point(), without(point(), "bytes")]}},
        ("inter_node", "measured", 1, "bytes"),
        "missing",
    ),
    (
        {**MINIMAL, "inter_node": {"measured": [point(collective="broadcast")]}},
        ("inter_node", "measured", 0, "collective"),
        "not_a_choice",
    ),
    (
        {**MINIMAL, "inter_node": {"measured": [point(bus_gb_per_s=0)]}},
        ("inter_node", "measured", 0, "bus_gb_per_s"),
        "too_small",
    ),
    (
        {**MINIMAL, "inter_node": {"measured": [point(), point(bus_gb_per_s=50)]}},
        ("inter_node", "measured", 1, "bus_gb_per_s"),
        "contradicts",
    ),
    ({**MINIMAL, "host": {}}, ("host", "memory_gib"), "missing"),
    ({**MINIMAL, "host": {"memory_gib": 64, "pcie_shared_by": 9}}, ("host", "pcie_shared_by"), "too_large"),
    ({**MINIMAL, "host": {"memory_gib": 64, "nvme_gib": 100}}, ("host", "nvme_read_gb_per_s"), "missing"),
    (
        {**MINIMAL, "host": {"memory_gib": 64, "nvme_gib": 100, "nvme_read_gb_per_s": 3}},
        ("host", "nvme_write_gb_per_s"),
        "missing",
    ),
    ({**MINIMAL, "host": {"memory_gib": 64, "cxl_gb_per_s": 30}}, ("host", "cxl_gib"), "missing"),
    ({**MINIMAL, "gpu_free_memory_gib": 79.3}, ("gpu_free_memory_gib",), "too_large"),
    ({**MINIMAL, "gpu_free_memory_gib": 0}, ("gpu_free_memory_gib",), "too_small"),
    ({**MINIMAL, "usd_per_gpu_hour": -2}, ("usd_per_gpu_hour",), "too_small"),
]


@pytest.mark.parametrize(("raw", "path", "code"), REFUSALS)
def test_bad_input_is_refused_at_the_field(raw: object, path: tuple[str | int, ...], code: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        resolve_cluster(raw)
    assert (raised.value.loc, raised.value.code) == (("cluster", *path), code)
    assert raised.value.message


def test_the_place_of_the_cluster_is_the_callers() -> None:
    with pytest.raises(InvalidInput) as raised:
        resolve_cluster({"nodes": 0}, ("body", 3, "cluster"))
    assert raised.value.loc == ("body", 3, "cluster", "nodes")


figures = st.floats(min_value=0.01, max_value=1e5)


@st.composite
def cluster_inputs(draw: st.DrawFn) -> dict[str, Any]:
    """Valid inputs with any optional field left out."""
    gpus_per_node, nodes = draw(st.sampled_from([1, 2, 4, 8, 16])), draw(st.integers(1, 40))
    gpu = draw(st.sampled_from([*gpu_names(), CUSTOM_GPU]))
    optional = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["prod-a", None]),
            "intra_node": st.fixed_dictionaries({}, optional={"gb_per_s": figures, "peer_to_peer": st.booleans()}),
            "inter_node": st.fixed_dictionaries(
                {"gbps_per_gpu": figures}, optional={"kind": st.sampled_from(["roce", "ethernet"])}
            ),
            "host": st.fixed_dictionaries({"memory_gib": figures}, optional={"pcie_gb_per_s": figures}),
            "nvlink_domain_gpus": st.sampled_from([size for size in (1, 2, 4, 8, 16) if size <= gpus_per_node]),
            "usd_per_gpu_hour": figures,
        },
    )
    return {"nodes": nodes, "gpus_per_node": gpus_per_node, "gpu": gpu, **draw(optional)}


@given(cluster_inputs())
def test_domains_divide_the_job_and_figures_are_positive(raw: dict[str, Any]) -> None:
    cluster = resolve_cluster(raw)
    assert cluster.gpus == raw["nodes"] * raw["gpus_per_node"]
    assert cluster.gpus % cluster.nvlink_domain_gpus == 0
    assert cluster.intra_node.bytes_per_s > 0
    assert cluster.inter_node.bytes_per_s > 0
    assert 0 < cluster.capacity_bytes <= cluster.gpu.memory_bytes


@given(cluster_inputs())
def test_stating_every_figure_resolves_to_the_same_cluster_without_defaults(raw: dict[str, Any]) -> None:
    once = resolve_cluster(raw)
    again = resolve_cluster(as_input(once))
    assert figures_left_out(again) <= {"cluster.host"}
    expected, actual = flat(as_input(once)), flat(as_input(again))
    numbers = {path: value for path, value in expected.items() if isinstance(value, float)}
    assert {path: actual[path] for path in numbers} == pytest.approx(numbers, rel=1e-12)
    assert {**actual, **numbers} == expected


@given(cluster_inputs())
def test_what_is_stated_is_kept_and_never_listed(raw: dict[str, Any]) -> None:
    cluster = resolve_cluster(raw)
    left_out = figures_left_out(cluster)
    for group in ("intra_node", "inter_node", "host"):
        for field in raw.get(group, {}):
            assert f"cluster.{group}.{field}" not in left_out
    if "inter_node" in raw:
        assert cluster.inter_node.bytes_per_s == raw["inter_node"]["gbps_per_gpu"] * GIGABIT_BYTES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(FULL)), json_values)
def test_any_json_in_any_field_is_taken_or_refused_never_broken(field: str, value: object) -> None:
    with suppress(InvalidInput):
        cluster = resolve_cluster({**FULL, field: value})
        assert math.isfinite(cluster.inter_node.bytes_per_s)
