"""From the contract's ClusterInput to a `Cluster`: figures that are left out are filled in, and every one is listed.

What stands in for a missing figure: intra-node link, fabric and PCIe from the GPU's catalog entry; the domain from
`gpus_per_node` (1 on PCIe); the processor side of a partly described host from the usual host of the generation. A GPU
of no known generation must bring the links that its cluster needs. Only defaults that a plan can feel are listed: the
fabric of a single NVLink domain is not.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from cost_models.catalog.hardware import ClusterPreset, cluster_preset
from cost_models.cluster import Cluster, Gpu, Host, IntraNodeLink, usual_path_gpus
from cost_models.cluster_links import INTER_FIELDS, INTRA_FIELDS, resolve_inter_node, resolve_intra_node
from cost_models.cluster_section import Loc, Section, shown
from cost_models.gpu_input import GpuChoice, resolve_gpu
from cost_models.units import GB, GIB

CLUSTER_FIELDS: Final = (
    "preset",
    "name",
    "nodes",
    "gpus_per_node",
    "gpu",
    "nvlink_domain_gpus",
    "intra_node",
    "inter_node",
    "host",
    "gpu_free_memory_gib",
    "usd_per_gpu_hour",
)
HOST_FIELDS: Final = (
    "memory_gib",
    "memory_gb_per_s",
    "cpu_cores",
    "pcie_gb_per_s",
    "pcie_shared_by",
    "cxl_gib",
    "cxl_gb_per_s",
    "nvme_gib",
    "nvme_read_gb_per_s",
    "nvme_write_gb_per_s",
)
MOST_NODES: Final = 1_000_000
MOST_GPUS_PER_NODE: Final = 1_024
MOST_CORES: Final = 100_000
"""Beyond any machine; larger values are slips, and would only overflow later."""

_Figure = TypeVar("_Figure", int, float)


def resolve_cluster(raw: object, loc: Loc = ("cluster",)) -> Cluster:
    """Resolve a ClusterInput, either `{"preset", "nodes"}` or a description; raises InvalidInput at the field."""
    fields = Section.read(raw, loc, CLUSTER_FIELDS, [])
    return _preset(fields) if "preset" in fields else _described(fields)


def load_cluster_preset(name: str, nodes: int) -> Cluster:
    """A cluster preset of `nodes` hosts."""
    return resolve_cluster({"preset": name, "nodes": nodes})


def _preset(fields: Section) -> Cluster:
    name = fields.text("preset")
    others = [field for field in fields.values if field not in ("preset", "nodes")]
    if others:
        raise fields.error(
            others[0], "not_with_preset", f"a preset takes nodes only; leave preset out to state {others[0]}"
        )
    preset = cluster_preset(cast(str, name), (*fields.loc, "preset"))
    nodes = fields.required_integer("nodes", most=MOST_NODES)
    filled = Section({**preset.fields, "nodes": nodes}, fields.loc, [_preset_figures(preset)])
    if preset.rack_gpus is None:
        return _described(filled)
    gpus_per_node = preset.fields["gpus_per_node"]
    domain = _rack_share(nodes * gpus_per_node, gpus_per_node, preset.rack_gpus)
    filled.assume(
        "nvlink_domain_gpus", domain, f"the most of a rack of {preset.rack_gpus} that divides the job equally"
    )
    return _described(Section({**filled.values, "nvlink_domain_gpus": domain}, filled.loc, filled.assumptions))


def _preset_figures(preset: ClusterPreset) -> str:
    """The assumption that says what a preset stands for."""
    figures = preset.fields
    intra, inter, host = figures["intra_node"], figures["inter_node"], figures["host"]
    price = figures.get("usd_per_gpu_hour")
    return (
        f"cluster preset {preset.name}: {figures['gpus_per_node']} x {figures['gpu']} a host; "
        f"{intra['kind']} {intra['gb_per_s']:g} GB/s and {inter['kind']} {inter['gbps_per_gpu']:g} Gb/s a GPU; "
        f"host memory {host['memory_gib']:g} GiB at {host['memory_gb_per_s']:g} GB/s, {host['cpu_cores']} cores, "
        f"host link {host['pcie_gb_per_s']:g} GB/s shared by {host['pcie_shared_by']}, NVMe {host['nvme_gib']:g} GiB "
        f"reading {host['nvme_read_gb_per_s']:g} and writing {host['nvme_write_gb_per_s']:g} GB/s; "
        f"{'no price' if price is None else f'{price:g} USD a GPU hour'} ({preset.source})"
    )


def _rack_share(gpus: int, gpus_per_node: int, rack_gpus: int) -> int:
    """The largest multiple of a host's GPUs within a rack that divides the job, so that all domains are equal."""
    return max(size for size in range(gpus_per_node, rack_gpus + 1, gpus_per_node) if gpus % size == 0)


def _described(fields: Section) -> Cluster:
    nodes = fields.required_integer("nodes", most=MOST_NODES)
    gpus_per_node = fields.required_integer("gpus_per_node", most=MOST_GPUS_PER_NODE)
    choice = resolve_gpu(fields)
    intra = fields.section("intra_node", INTRA_FIELDS)
    is_used = gpus_per_node > 1 or (fields.integer("nvlink_domain_gpus", most=nodes * gpus_per_node) or 1) > 1
    intra_node = resolve_intra_node(intra, choice, gpus_per_node, is_used=is_used)
    domain = _nvlink_domain(fields, intra_node.kind, nodes, gpus_per_node)
    crosses = nodes > 1 and nodes * gpus_per_node > domain
    inter = fields.section("inter_node", INTER_FIELDS)
    inter_node = resolve_inter_node(inter, choice, gpus_per_node, is_used=crosses)
    return Cluster(
        name=fields.text("name"),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu=choice.gpu,
        nvlink_domain_gpus=domain,
        intra_node=intra_node,
        inter_node=inter_node,
        host=_host(fields, choice, gpus_per_node, intra_node),
        gpu_free_memory_bytes=_free_memory_bytes(fields, choice.gpu),
        usd_per_gpu_hour=fields.number("usd_per_gpu_hour"),
        assumptions=tuple(fields.assumptions),
    )


def _nvlink_domain(fields: Section, kind: str, nodes: int, gpus_per_node: int) -> int:
    gpus = nodes * gpus_per_node
    domain = fields.integer("nvlink_domain_gpus", most=gpus)
    if domain is None:
        domain = 1 if kind == "pcie" else gpus_per_node
        if gpus > 1:
            reason = "PCIe cards share no NVLink domain" if kind == "pcie" else "a domain does not leave its host"
            fields.assume("nvlink_domain_gpus", domain, reason)
        return domain
    if domain % gpus_per_node and gpus_per_node % domain:
        raise fields.error(
            "nvlink_domain_gpus",
            "domain_not_divisible",
            f"a domain holds whole hosts or divides one: {domain} and gpus_per_node {gpus_per_node} do neither",
        )
    if gpus % domain:
        raise fields.error(
            "nvlink_domain_gpus", "domain_not_divisible", f"domains are equal: {gpus} GPUs do not divide by {domain}"
        )
    if kind == "pcie" and domain > gpus_per_node:
        raise fields.error("nvlink_domain_gpus", "domain_not_divisible", "PCIe does not join GPUs of different hosts")
    return domain


def _free_memory_bytes(fields: Section, gpu: Gpu) -> float | None:
    free_gib = fields.positive("gpu_free_memory_gib")
    if free_gib is None:
        return None
    if free_gib * GIB > gpu.memory_bytes:
        most = f"{gpu.name} has {gpu.memory_bytes / GIB:.2f} GiB in all"
        raise fields.error("gpu_free_memory_gib", "too_large", f"{shown(free_gib)} GiB cannot be free: {most}")
    return free_gib * GIB


def _host(fields: Section, choice: GpuChoice, gpus_per_node: int, link: IntraNodeLink) -> Host | None:
    if "host" not in fields:
        fields.assume("host", "unknown", "offload is not proposed")
        return None
    host = fields.section("host", HOST_FIELDS)
    memory_gib = host.positive("memory_gib")
    if memory_gib is None:
        raise host.missing("memory_gib", "no GPU says how much memory its host has")
    usual = choice.usual
    why = f"usual with {usual.gpu.generation} ({usual.host.source})" if usual else ""
    cxl_gib, cxl_rate = _tier(host, "cxl_gib", ("cxl_gb_per_s",))
    nvme_gib, nvme_read_rate, nvme_write_rate = _tier(host, "nvme_gib", ("nvme_read_gb_per_s", "nvme_write_gb_per_s"))
    return Host(
        memory_bytes=memory_gib * GIB,
        memory_bytes_per_s=GB
        * _or_usual(
            host,
            "memory_gb_per_s",
            host.positive("memory_gb_per_s"),
            usual.host.memory_bytes_per_s / GB if usual else None,
            why,
        ),
        cpu_cores=_or_usual(
            host,
            "cpu_cores",
            host.integer("cpu_cores", most=MOST_CORES),
            usual.host.cpu_cores if usual else None,
            why,
        ),
        pcie_bytes_per_s=GB
        * _or_usual(
            host,
            "pcie_gb_per_s",
            host.positive("pcie_gb_per_s"),
            usual.pcie_bytes_per_s / GB if usual else None,
            usual.pcie_source if usual else "",
        ),
        pcie_shared_by=_path_gpus(host, gpus_per_node, link),
        cxl_bytes=cxl_gib * GIB,
        cxl_bytes_per_s=cxl_rate * GB,
        nvme_bytes=nvme_gib * GIB,
        nvme_read_bytes_per_s=nvme_read_rate * GB,
        nvme_write_bytes_per_s=nvme_write_rate * GB,
    )


def _path_gpus(host: Section, gpus_per_node: int, link: IntraNodeLink) -> int:
    """GPUs that share a path to the host: as stated, as the topology shows, or as usual."""
    given, read = host.integer("pcie_shared_by", most=gpus_per_node), link.path_gpus
    if read is not None:
        if given not in (None, read):
            raise host.error(
                "pcie_shared_by", "contradicts", f"pcie_shared_by {given} contradicts topology, which says {read}"
            )
        return read
    usual = usual_path_gpus(gpus_per_node, link)
    why = "each GPU has its own path to the host" if usual == 1 else "a PCIe switch for each of two processors"
    return _or_usual(host, "pcie_shared_by", given, usual, why)


def _or_usual(host: Section, name: str, given: _Figure | None, usual: _Figure | None, why: str) -> _Figure:
    """The figure that is given, or else the usual one, which is then listed."""
    if given is not None:
        return given
    if usual is None:
        raise host.missing(name, "the GPU's generation is unknown")
    host.assume(name, usual, why)
    return usual


def _tier(host: Section, size: str, rates: tuple[str, ...]) -> tuple[float, ...]:
    """Size and rates of an optional memory tier: rates are required once there is any of it."""
    gib = host.number(size)
    if gib is None:
        given = [rate for rate in rates if host.number(rate)]
        if given:
            raise host.missing(size, f"{given[0]} is given")
        host.assume(size, 0, "none that could be used")
        return (0.0,) * (1 + len(rates))
    if gib == 0:
        return (0.0,) * (1 + len(rates))
    figures = [gib]
    for rate in rates:
        value = host.positive(rate)
        if value is None:
            raise host.missing(rate, f"{shown(gib)} GiB of it are given")
        figures.append(value)
    return tuple(figures)
