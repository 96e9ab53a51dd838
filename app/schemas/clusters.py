"""ClusterInput: a preset and its nodes, or a description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.schemas import examples
from app.schemas.base import Degree, RequestModel, Text

PRESET_TAG, EXPLICIT_TAG, GPU_NAME_TAG, GPU_SPEC_TAG = "<preset>", "<explicit>", "<name>", "<specification>"
"""Names of union members; `app.errors` takes them out of the place of an error."""
UNION_TAGS = frozenset({PRESET_TAG, EXPLICIT_TAG, GPU_NAME_TAG, GPU_SPEC_TAG})

Rate = Annotated[float, Field(gt=0, le=1e6)]
Gib = Annotated[float, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=10**6)]


class PeakTflops(RequestModel):
    """Dense peaks in 10^12 FLOP/s; a precision left out is not supported."""

    bf16: Rate | None = None
    fp16: Rate | None = None
    fp8: Rate | None = None
    fp4: Rate | None = None
    tf32: Rate | None = None
    fp32: Rate | None = None


class GpuSpec(RequestModel):
    """A GPU that the catalog does not know."""

    name: Text = Field(description="Any name.")
    memory_gib: Annotated[float, Field(gt=0, le=1e6)] = Field(description="Total as torch reports it, GiB.")
    memory_gb_per_s: Rate = Field(description="Device memory bandwidth, 10^9 byte/s.")
    peak_tflops: PeakTflops
    tdp_watts: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="Board power, W; left out: that of the catalog's card of that name."
    )


class NvlinkBridge(RequestModel):
    """Cards joined by a bridge."""

    gpus: Annotated[int, Field(ge=2, le=1024)] = Field(description="Cards that one bridge joins.")
    gb_per_s: Rate = Field(description="What one GPU sends, 10^9 byte/s.")


class IntraNode(RequestModel):
    """The link inside one NVLink domain, or one host."""

    kind: Literal["nvlink", "pcie", "xgmi", "hccs"] | None = Field(None, description="Left out: the GPU's own.")
    gb_per_s: Rate | None = Field(None, description="What one GPU sends, one direction, 10^9 byte/s.")
    peer_to_peer: bool | None = Field(None, description="False on cards without it (3090, 4090).")
    nvlink_bridge: NvlinkBridge | None = Field(None, description="Beside kind pcie.")


class Measured(RequestModel):
    """A bus bandwidth as nccl-tests reports it; wins over link figures."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    nodes: Degree
    bytes: Annotated[int, Field(ge=1, le=2**50)] = Field(description="Message size, bytes.")
    bus_gb_per_s: Rate = Field(description="Bus bandwidth, 10^9 byte/s.")


class InterNode(RequestModel):
    """The fabric between domains."""

    kind: Literal["infiniband", "roce", "efa", "ethernet"] | None = Field(None, description="Left out: infiniband.")
    gbps_per_gpu: Rate | None = Field(None, description="What one GPU sends, 10^9 bit/s; ethernet needs it.")
    oversubscription: Annotated[float, Field(ge=1, le=1000)] | None = Field(None, description="Left out: 1.")
    measured: Annotated[list[Measured], Field(max_length=1000)] | None = None


class Host(RequestModel):
    """One host: needed for offload."""

    memory_gib: Gib | None = Field(None, description="DRAM, GiB.")
    memory_gb_per_s: Rate | None = Field(None, description="DRAM bandwidth, 10^9 byte/s.")
    cpu_cores: Count | None = None
    pcie_gb_per_s: Rate | None = Field(None, description="Of one GPU's slot, one direction, 10^9 byte/s.")
    pcie_shared_by: Count | None = Field(None, description="GPUs that share that path.")
    cxl_gib: Gib | None = None
    cxl_gb_per_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    nvme_gib: Gib | None = None
    nvme_read_gb_per_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    nvme_write_gb_per_s: Annotated[float, Field(ge=0, le=1e6)] | None = None


def _gpu_tag(value: Any) -> str:
    return GPU_NAME_TAG if isinstance(value, str) else GPU_SPEC_TAG


def _refuse_mixed(value: Any) -> Any:
    if isinstance(value, list):
        raise PydanticCustomError("mixed_gpus_unsupported", "a cluster has one kind of GPU; plan each kind on its own")
    return value


GpuInput = Annotated[
    Annotated[Text, Tag(GPU_NAME_TAG)] | Annotated[GpuSpec, Tag(GPU_SPEC_TAG)],
    Discriminator(_gpu_tag),
    BeforeValidator(_refuse_mixed),
]


class ClusterPreset(RequestModel):
    """A cluster of the catalog."""

    preset: Text = Field(description="A name of `catalog/clusters`.")
    nodes: Degree = Field(description="Hosts (trays on NVL72).")


class ClusterSpec(RequestModel):
    """A cluster by its parts; what is left out comes from the GPU's generation and is listed in `assumptions`."""

    name: Text | None = Field(None, description="Two clusters are one for learning if their names agree.")
    nodes: Degree = Field(description="Hosts (trays on NVL72).")
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)]
    gpu: GpuInput = Field(description="A name of `catalog/gpus`, or a specification.")
    nvlink_domain_gpus: Degree | None = Field(None, description="GPUs of this job in one NVLink domain.")
    intra_node: IntraNode | None = None
    inter_node: InterNode | None = None
    host: Host | None = None
    gpu_free_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="The least that is free on any card, GiB."
    )
    usd_per_gpu_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None


def _cluster_tag(value: Any) -> str:
    named = "preset" in value if isinstance(value, dict) else isinstance(value, ClusterPreset)
    return PRESET_TAG if named else EXPLICIT_TAG


ClusterInput = Annotated[
    Annotated[ClusterPreset, Tag(PRESET_TAG)] | Annotated[ClusterSpec, Tag(EXPLICIT_TAG)],
    Discriminator(_cluster_tag),
    Field(examples=[examples.CLUSTER]),
]
