"""The two links of a ClusterInput: inside a domain or host, and between hosts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, Literal, TypeAlias, cast, get_args

from cost_models.cluster import (
    ExpertDispatch,
    InterNodeKind,
    InterNodeLink,
    IntraNodeKind,
    IntraNodeLink,
    MeasuredBandwidth,
    NvlinkBridge,
)
from cost_models.cluster_section import Section, shown
from cost_models.cluster_topology import describe_link
from cost_models.gpu_input import GpuChoice
from cost_models.units import GB, GIGABIT_BYTES

INTRA_FIELDS: Final = ("kind", "gb_per_s", "peer_to_peer", "nvlink_bridge", "switched", "topology")
INTER_FIELDS: Final = ("kind", "gbps_per_gpu", "oversubscription", "measured", "expert_dispatch")
BRIDGE_FIELDS: Final = ("gpus", "gb_per_s")
MEASURED_FIELDS: Final = ("collective", "nodes", "bytes", "bus_gb_per_s")
Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
MESH_GPUS: Final = 8
"""Of a board without a switch: MI300X and Gaudi join eight all to all, Ascend 910B likewise (AMD CDNA 3 white paper:
seven xGMI links of 64 GB/s; Intel Gaudi 2 white paper: 21 ports over seven peers). A Volta host of four has two NVLinks
to each of the others; in the cube mesh of eight (NVIDIA DGX-1 with Tesla V100 System Architecture) pairs have none to
two of six, so that an equal share is the mean."""
MOST_MEASURED_NODES: Final = 1_000_000
MOST_MESSAGE_BYTES: Final = 2**50
"""Beyond any measurement; larger values are slips."""


def resolve_intra_node(fields: Section, choice: GpuChoice, gpus_per_node: int, *, is_used: bool) -> IntraNodeLink:
    """The link between GPUs of a host or domain; its defaults are listed if it is used."""
    if "topology" not in fields:
        return _stated_intra_node(fields, choice, gpus_per_node, is_used=is_used)
    described = describe_link(fields, choice, gpus_per_node)
    link = _stated_intra_node(described.fields, choice, gpus_per_node, is_used=is_used)
    mesh_gpus = link.mesh_gpus if described.mesh_gpus is None else described.mesh_gpus
    return replace(link, mesh_gpus=mesh_gpus, path_gpus=described.path_gpus)


def _stated_intra_node(fields: Section, choice: GpuChoice, gpus_per_node: int, *, is_used: bool) -> IntraNodeLink:
    usual = choice.usual
    if usual is None and not is_used and not fields.values:
        # One GPU of unknown make: nothing is ever sent over this link.
        return IntraNodeLink("pcie", math.inf)
    kind = cast(IntraNodeKind | None, fields.choice("kind", get_args(IntraNodeKind)))
    if kind is None:
        if usual is None:
            raise fields.missing("kind", "the GPU's generation is unknown")
        kind = usual.link_kind
        if is_used:
            fields.assume("kind", kind, f"the link of {usual.gpu.name}")
    peer_to_peer = fields.flag("peer_to_peer")
    if peer_to_peer is None:
        peer_to_peer = usual is None or usual.peer_to_peer
        if is_used:
            fields.assume("peer_to_peer", peer_to_peer, "as the GPU's drivers have it" if usual else "GPU unknown")
    return IntraNodeLink(
        kind=kind,
        bytes_per_s=_intra_bytes_per_s(fields, choice, kind, is_used=is_used),
        peer_to_peer=peer_to_peer,
        nvlink_bridge=_nvlink_bridge(fields, kind, gpus_per_node),
        mesh_gpus=_mesh_gpus(fields, choice, kind, gpus_per_node, is_used=is_used),
    )


def _mesh_gpus(fields: Section, choice: GpuChoice, kind: str, gpus_per_node: int, *, is_used: bool) -> int | None:
    """NVLink from Ampere on and the PCIe bus let any two GPUs talk at the full rate; xGMI, HCCS and Volta do not."""
    volta = choice.gpu.generation == "volta"
    switched = fields.flag("switched")
    if switched is None:
        switched = kind == "pcie" or (kind == "nvlink" and not volta)
        if is_used and not switched:
            fields.assume("switched", switched, f"{kind} of {choice.gpu.name} joins each pair by its own links")
    if switched:
        return None
    return max(gpus_per_node, 2) if volta else max(gpus_per_node, MESH_GPUS)


def _intra_bytes_per_s(fields: Section, choice: GpuChoice, kind: str, *, is_used: bool) -> float:
    rate = fields.positive("gb_per_s")
    if rate is not None:
        return rate * GB
    usual = choice.usual
    if usual is None or kind not in (usual.link_kind, "pcie"):
        raise fields.missing("gb_per_s", f"the catalog knows no {kind} link of {choice.gpu.name}")
    bytes_per_s = usual.pcie_bytes_per_s if kind == "pcie" else usual.link_bytes_per_s
    if is_used:
        fields.assume(
            "gb_per_s", bytes_per_s / GB, usual.pcie_source if kind == "pcie" else f"what {usual.gpu.name} sends"
        )
    return bytes_per_s


def _nvlink_bridge(fields: Section, kind: str, gpus_per_node: int) -> NvlinkBridge | None:
    if "nvlink_bridge" not in fields:
        return None
    if kind != "pcie":
        raise fields.error("nvlink_bridge", "bridge_needs_pcie", f"a bridge joins PCIe cards; kind is {kind}")
    bridge = fields.section("nvlink_bridge", BRIDGE_FIELDS)
    gpus, rate = bridge.integer("gpus", least=2, most=gpus_per_node), bridge.positive("gb_per_s")
    if gpus is None:
        raise bridge.missing("gpus", "how many cards a bridge joins")
    if rate is None:
        raise bridge.missing("gb_per_s", "what one card sends over the bridge")
    if gpus_per_node % gpus:
        raise bridge.error("gpus", "bridge_not_divisible", f"{gpus_per_node} GPUs of a host do not divide by {gpus}")
    return NvlinkBridge(gpus, rate * GB)


def resolve_inter_node(fields: Section, choice: GpuChoice, gpus_per_node: int, *, is_used: bool) -> InterNodeLink:
    """The fabric between hosts; its defaults are listed if a job crosses hosts and domains."""
    usual = choice.usual
    if usual is None and not is_used and not fields.values:
        # One host of unknown make: nothing is ever sent over this link.
        return InterNodeLink("ethernet", math.inf)
    kind = cast(InterNodeKind | None, fields.choice("kind", get_args(InterNodeKind)))
    if kind == "ethernet" and "gbps_per_gpu" not in fields:
        raise fields.missing("gbps_per_gpu", "ethernet comes at any speed")
    if kind is None:
        if usual is None:
            raise fields.missing("kind", "the GPU's generation is unknown")
        kind = usual.fabric.kind
        if is_used:
            fields.assume("kind", kind, usual.fabric.source)
    gbps = fields.positive("gbps_per_gpu")
    if gbps is None:
        if usual is None:
            raise fields.missing("gbps_per_gpu", "the GPU's generation is unknown")
        gbps = usual.fabric.bytes_per_s(gpus_per_node) / GIGABIT_BYTES
        if is_used:
            fields.assume("gbps_per_gpu", gbps, usual.fabric.source)
    oversubscription = fields.number("oversubscription", least=1.0)
    if oversubscription is None:
        oversubscription = 1.0
        if is_used:
            fields.assume("oversubscription", oversubscription, "a non-blocking fabric")
    # Where its default matters, the warning expert_parallel_crosses_domain names it.
    dispatch = cast(ExpertDispatch | None, fields.choice("expert_dispatch", get_args(ExpertDispatch))) or "all-to-all"
    return InterNodeLink(kind, gbps * GIGABIT_BYTES, oversubscription, _measured(fields), dispatch)


def _measured(fields: Section) -> tuple[MeasuredBandwidth, ...]:
    raw = fields.values.get("measured", ())
    if not isinstance(raw, list | tuple):
        raise fields.error("measured", "not_a_list", f"measured must be a list, not {shown(raw)}")
    points: dict[tuple[str, int, int], MeasuredBandwidth] = {}
    for index, item in enumerate(raw):
        entry = Section.read(item, (*fields.loc, "measured", index), MEASURED_FIELDS, fields.assumptions)
        point = _measured_point(entry)
        key = (point.collective, point.nodes, point.message_bytes)
        if points.setdefault(key, point) != point:
            raise entry.error(
                "bus_gb_per_s", "contradicts", "this collective, nodes and bytes have another figure above"
            )
    return tuple(points.values())


def _measured_point(entry: Section) -> MeasuredBandwidth:
    collective = cast(Collective | None, entry.choice("collective", get_args(Collective)))
    nodes, size = entry.integer("nodes", most=MOST_MEASURED_NODES), entry.integer("bytes", most=MOST_MESSAGE_BYTES)
    rate = entry.positive("bus_gb_per_s")
    if collective is None or nodes is None or size is None or rate is None:
        absent = next(name for name in MEASURED_FIELDS if name not in entry)
        raise entry.missing(absent, "a measurement states what was measured")
    return MeasuredBandwidth(collective, nodes, size, rate * GB)
