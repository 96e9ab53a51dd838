"""GPUs and clusters by name, with the links that come with them. Read from `gpus.toml` and `clusters.toml`, once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from cost_models.cluster import Generation, Gpu, InterNodeKind, IntraNodeKind
from cost_models.errors import UnknownPreset
from cost_models.units import GB, GIB, GIGABIT_BYTES, TERA


@dataclass(frozen=True)
class UsualFabric:
    """What usually joins the hosts of a GPU. Either each GPU has its own port, or a host's GPUs share one."""

    kind: InterNodeKind
    gpu_bytes_per_s: float | None
    host_bytes_per_s: float | None
    source: str

    def bytes_per_s(self, gpus_per_node: int) -> float:
        """What one GPU sends when all of its host do."""
        if self.gpu_bytes_per_s is not None:
            return self.gpu_bytes_per_s
        return cast(float, self.host_bytes_per_s) / gpus_per_node


@dataclass(frozen=True)
class UsualHost:
    """The processor side of the host that a generation of GPUs usually sits in."""

    memory_bytes_per_s: float
    cpu_cores: int
    source: str


@dataclass(frozen=True)
class GpuEntry:
    """One GPU of the catalog: the device, and what stands in for links and host figures that are left out."""

    gpu: Gpu
    family: str
    """The word in a product name that identifies it (`h100`, `4090`)."""
    form: Literal["module", "card"]
    link_kind: IntraNodeKind
    link_bytes_per_s: float
    peer_to_peer: bool
    pcie_bytes_per_s: float
    pcie_source: str
    fabric: UsualFabric
    host: UsualHost
    source: str
    memory_source: str


@dataclass(frozen=True)
class ClusterPreset:
    """A cluster by name: the fields of a ClusterInput without `nodes`, in the contract's units."""

    name: str
    fields: Mapping[str, Any]
    rack_gpus: int | None
    """GPUs that one NVLink domain can hold, where it spans hosts."""
    source: str


def gpu_names() -> tuple[str, ...]:
    """Names of all GPUs, oldest generation of each vendor first."""
    return tuple(_gpu_entries())


def gpu_entry(name: str, loc: tuple[str | int, ...] = ("cluster", "gpu")) -> GpuEntry:
    """A GPU with its usual links; an unknown name is refused with the nearest known ones."""
    entries = _gpu_entries()
    if name not in entries:
        raise UnknownPreset(loc, "unknown_gpu", f"unknown GPU {_quoted(name)}; {_nearest(name, entries)}")
    return entries[name]


def load_gpu(name: str) -> Gpu:
    """A GPU of the catalog."""
    return gpu_entry(name).gpu


def similar_gpu(name: str) -> GpuEntry | None:
    """The catalog GPU whose product family a free-form name mentions (`h100-96gb`, `NVIDIA H100 NVL`), if just one."""
    entries = _gpu_entries()
    if name in entries:
        return entries[name]
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    relatives = [entry for entry in entries.values() if entry.family in words]
    if len({entry.family for entry in relatives}) != 1:
        return None
    form = "card" if words & {"pcie", "nvl"} else "module"
    return next((entry for entry in relatives if entry.form == form), relatives[0])


def cluster_preset_names() -> tuple[str, ...]:
    """Names of all cluster presets."""
    return tuple(_cluster_presets())


def cluster_preset(name: str, loc: tuple[str | int, ...] = ("cluster", "preset")) -> ClusterPreset:
    """A cluster preset; an unknown name is refused with the nearest known ones."""
    presets = _cluster_presets()
    if name not in presets:
        raise UnknownPreset(loc, "unknown_preset", f"unknown cluster {_quoted(name)}; {_nearest(name, presets)}")
    return presets[name]


def gpu_catalog() -> list[dict[str, Any]]:
    """All GPUs in the contract's units, each with its source."""
    return [_gpu_as_fields(entry) for entry in _gpu_entries().values()]


def cluster_catalog() -> list[dict[str, Any]]:
    """All cluster presets in the contract's units, each with its source."""
    return [
        {"preset": preset.name, **preset.fields, "rack_gpus": preset.rack_gpus, "source": preset.source}
        for preset in _cluster_presets().values()
    ]


def _gpu_as_fields(entry: GpuEntry) -> dict[str, Any]:
    fabric, gpu = entry.fabric, entry.gpu
    return {
        "name": gpu.name,
        "generation": gpu.generation,
        "chip": gpu.chip,
        "multiprocessors": gpu.multiprocessors,
        "memory_gib": gpu.memory_bytes / GIB,
        "memory_gb_per_s": gpu.memory_bytes_per_s / GB,
        "peak_tflops": {precision: peak / TERA for precision, peak in gpu.peak_flops_per_s.items()},
        "tdp_watts": gpu.tdp_watts,
        "flash_attention": gpu.flash_attention,
        "intra_node": {
            "kind": entry.link_kind,
            "gb_per_s": entry.link_bytes_per_s / GB,
            "peer_to_peer": entry.peer_to_peer,
        },
        "pcie_gb_per_s": entry.pcie_bytes_per_s / GB,
        "inter_node": {
            "kind": fabric.kind,
            "gbps_per_gpu": None if fabric.gpu_bytes_per_s is None else fabric.gpu_bytes_per_s / GIGABIT_BYTES,
            "gbps_per_host": None if fabric.host_bytes_per_s is None else fabric.host_bytes_per_s / GIGABIT_BYTES,
        },
        "source": entry.source,
        "memory_source": entry.memory_source,
    }


@cache
def _gpu_entries() -> dict[str, GpuEntry]:
    tables = _read("gpus.toml")
    return {name: _gpu_entry(name, fields, tables) for name, fields in tables["gpu"].items()}


def _gpu_entry(name: str, fields: Mapping[str, Any], tables: Mapping[str, Any]) -> GpuEntry:
    generation = cast(Generation, fields["generation"])
    fabric, host, pcie = tables["fabric"][fields["fabric"]], tables["host"][generation], tables["pcie"][fields["pcie"]]
    gpu = Gpu(
        name=name,
        memory_bytes=fields["memory_gib"] * GIB,
        memory_bytes_per_s=fields["memory_gb_per_s"] * GB,
        peak_flops_per_s={precision: peak * TERA for precision, peak in fields["peak_tflops"].items()},
        tdp_watts=float(fields["tdp_watts"]),
        generation=generation,
        multiprocessors=fields["multiprocessors"],
        chip=fields["chip"],
        flash_attention=fields["flash_attention"],
    )
    return GpuEntry(
        gpu=gpu,
        family=fields["family"],
        form=fields["form"],
        link_kind=fields["link"],
        link_bytes_per_s=fields.get("link_gb_per_s", pcie["gb_per_s"]) * GB,
        peer_to_peer=fields.get("peer_to_peer", True),
        pcie_bytes_per_s=pcie["gb_per_s"] * GB,
        pcie_source=pcie["source"],
        fabric=UsualFabric(
            kind=fabric["kind"],
            gpu_bytes_per_s=_optional_gigabits(fabric.get("gbps_per_gpu")),
            host_bytes_per_s=_optional_gigabits(fabric.get("gbps_per_host")),
            source=fabric["source"],
        ),
        host=UsualHost(host["memory_gb_per_s"] * GB, host["cpu_cores"], host["source"]),
        source=fields["source"],
        memory_source=fields["memory_source"],
    )


@cache
def _cluster_presets() -> dict[str, ClusterPreset]:
    return {
        name: ClusterPreset(
            name=name,
            fields={field: value for field, value in table.items() if field not in ("rack_gpus", "source")},
            rack_gpus=table.get("rack_gpus"),
            source=table["source"],
        )
        for name, table in _read("clusters.toml").items()
    }


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("cost_models.catalog").joinpath(file).read_text(encoding="utf-8"))


def _optional_gigabits(gbps: float | None) -> float | None:
    return None if gbps is None else gbps * GIGABIT_BYTES


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


def _nearest(name: str, known: Iterable[str]) -> str:
    """What could have been meant; all names where nothing is near."""
    names = list(known)
    near = difflib.get_close_matches(name.lower()[:80], names, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names)}"
