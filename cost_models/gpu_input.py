"""The GPU of a ClusterInput: a name of the catalog, or a device described by its datasheet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cost_models.catalog.hardware import GpuEntry, gpu_entry, similar_gpu
from cost_models.cluster import Gpu
from cost_models.cluster_section import Section, shown
from cost_models.units import GB, GIB, TERA

GPU_FIELDS: Final = ("name", "memory_gib", "memory_gb_per_s", "peak_tflops", "tdp_watts")
PRECISIONS: Final = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
USUAL_MULTIPROCESSORS: Final = 108
"""Of a GPU that the catalog has no relative of: as many as the A100, since no figure of a datasheet tells."""


@dataclass(frozen=True)
class GpuChoice:
    """The device, and the catalog entry whose links and host stand in for what is left out (None: unknown)."""

    gpu: Gpu
    usual: GpuEntry | None


def resolve_gpu(cluster: Section) -> GpuChoice:
    """Read `gpu` of a cluster. A name that is not in the catalog is refused; so are several kinds of GPU."""
    raw = cluster.values.get("gpu")
    if raw is None:
        raise cluster.missing("gpu", "a catalog name or an object with the datasheet's figures")
    if isinstance(raw, list | tuple) or (isinstance(raw, str) and _names_several(raw)):
        raise cluster.error("gpu", "mixed_gpus_unsupported", "a cluster has one kind of GPU; plan each kind on its own")
    if isinstance(raw, str):
        entry = gpu_entry(raw, (*cluster.loc, "gpu"))
        return GpuChoice(entry.gpu, entry)
    return _described_gpu(cluster.section("gpu", GPU_FIELDS))


def _names_several(raw: str) -> bool:
    """Whether the string joins the names of different GPUs (`a100-sxm4-80gb+h100-sxm5-80gb`)."""
    parts = [similar_gpu(part.strip()) for part in re.split(r"[+,;/&|]|\band\b", raw)]
    return len({part.gpu.name for part in parts if part is not None}) > 1


def _described_gpu(fields: Section) -> GpuChoice:
    name = fields.text("name")
    if name is None:
        raise fields.missing("name", "runs of the same GPU are recognised by it")
    memory_gib, memory_gb_per_s = fields.positive("memory_gib"), fields.positive("memory_gb_per_s")
    if memory_gib is None:
        raise fields.missing("memory_gib", "the device's total as torch reports it")
    if memory_gb_per_s is None:
        raise fields.missing("memory_gb_per_s", "the datasheet's memory bandwidth")
    peaks = fields.section("peak_tflops", PRECISIONS)
    peak_tflops = {precision: peak for precision in PRECISIONS if (peak := peaks.positive(precision)) is not None}
    if not peak_tflops:
        raise fields.missing("peak_tflops", "the dense peak of at least one precision")
    usual = similar_gpu(name)
    gpu = Gpu(
        name=name,
        memory_bytes=memory_gib * GIB,
        memory_bytes_per_s=memory_gb_per_s * GB,
        peak_flops_per_s={precision: peak * TERA for precision, peak in peak_tflops.items()},
        tdp_watts=_tdp_watts(fields, usual),
        generation=usual.gpu.generation if usual else None,
        multiprocessors=usual.gpu.multiprocessors if usual else USUAL_MULTIPROCESSORS,
        chip=usual.gpu.chip if usual else None,
        flash_attention=usual.gpu.flash_attention if usual else True,
    )
    _list_relation(fields, name, usual)
    return GpuChoice(gpu, usual)


def _tdp_watts(fields: Section, usual: GpuEntry | None) -> float:
    watts = fields.positive("tdp_watts")
    if watts is not None:
        return watts
    if usual is None:
        raise fields.missing("tdp_watts", "the catalog knows no GPU of this name")
    fields.assume("tdp_watts", usual.gpu.tdp_watts, f"as {usual.gpu.name}")
    return usual.gpu.tdp_watts


def _list_relation(fields: Section, name: str, usual: GpuEntry | None) -> None:
    path = ".".join(str(part) for part in fields.loc)
    if usual is None:
        fields.assumptions.append(
            f"{path}: {shown(name)} is in no known generation; priced from its datasheet alone, with flash attention"
        )
    else:
        fields.assumptions.append(
            f"{path}: {shown(name)} is taken for a relative of {usual.gpu.name}: generation {usual.gpu.generation}, "
            f"its usual links where none are given, flash attention {shown(usual.gpu.flash_attention)}"
        )
