"""ClusterInput: a preset and its nodes, or a description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.schemas import examples
from app.schemas.base import Degree, RequestModel, Text, refuse_odd_text

PRESET_TAG, EXPLICIT_TAG, GPU_NAME_TAG, GPU_SPEC_TAG = "<preset>", "<explicit>", "<name>", "<specification>"
"""Names of union members; `app.errors` takes them out of the place of an error."""
UNION_TAGS = frozenset({PRESET_TAG, EXPLICIT_TAG, GPU_NAME_TAG, GPU_SPEC_TAG})


SMALLEST = 1e-3
"""Of any rate or memory: below it there is nothing to plan for, and quotients would leave the range of floats."""


def _none_or_some(value: float) -> float:
    if 0 < value < SMALLEST:
        raise PydanticCustomError("out_of_range", "must be 0, or {smallest} and more", {"smallest": SMALLEST})
    return value


Rate = Annotated[float, Field(ge=SMALLEST, le=1e6)]
Gib = Annotated[float, Field(ge=SMALLEST, le=1e9)]
TierRate = Annotated[float, Field(ge=0, le=1e6), AfterValidator(_none_or_some)]
TierGib = Annotated[float, Field(ge=0, le=1e9), AfterValidator(_none_or_some)]
TopologyText = Annotated[str, Field(max_length=65_536), AfterValidator(refuse_odd_text)]
Count = Annotated[int, Field(ge=1, le=10**6)]


class PeakTflops(RequestModel):
    """Dense peaks in 10^12 FLOP/s; a precision left out is not supported."""

    bf16: Rate | None = Field(None, description="Dense bf16 peak, 10^12 FLOP/s.")
    fp16: Rate | None = Field(None, description="Dense fp16 peak, 10^12 FLOP/s.")
    fp8: Rate | None = Field(None, description="Dense fp8 peak, 10^12 FLOP/s.")
    fp4: Rate | None = Field(None, description="Dense fp4 peak, 10^12 FLOP/s.")
    tf32: Rate | None = Field(None, description="Dense tf32 peak, 10^12 FLOP/s.")
    fp32: Rate | None = Field(None, description="Dense fp32 peak, 10^12 FLOP/s.")


class GpuSpec(RequestModel):
    """A GPU that the catalog does not know."""

    name: Text = Field(description="Any name.")
    memory_gib: Gib = Field(description="Total as torch reports it, GiB.")
    memory_gb_per_s: Rate = Field(description="Device memory bandwidth, 10^9 byte/s.")
    peak_tflops: PeakTflops = Field(description="Dense peaks by precision, 10^12 FLOP/s.")
    tdp_watts: Rate | None = Field(
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
    switched: bool | None = Field(
        None,
        description="Whether any two GPUs talk at the full rate. Left out: false for xgmi, hccs and NVLink of V100, "
        "where each pair has links of its own and a group uses those between its members.",
    )
    topology: TopologyText | None = Field(
        None,
        description="What `nvidia-smi topo -m` prints on a host. The other fields (and `host.pcie_shared_by`) are read "
        "from it and listed in `assumptions`; those that are stated as well must agree with it.",
        examples=[examples.TOPOLOGY],
    )


class Measured(RequestModel):
    """A bus bandwidth as nccl-tests reports it; wins over link figures."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] = Field(
        description="What was measured."
    )
    nodes: Degree = Field(description="On how many hosts.")
    bytes: Annotated[int, Field(ge=1, le=2**50)] = Field(description="Message size, bytes.")
    bus_gb_per_s: Rate = Field(description="Bus bandwidth, 10^9 byte/s.")


class InterNode(RequestModel):
    """The fabric between domains."""

    kind: Literal["infiniband", "roce", "efa", "ethernet"] | None = Field(None, description="Left out: infiniband.")
    gbps_per_gpu: Rate | None = Field(None, description="What one GPU sends, 10^9 bit/s; ethernet needs it.")
    oversubscription: Annotated[float, Field(ge=1, le=1000)] | None = Field(None, description="Left out: 1.")
    measured: Annotated[list[Measured], Field(max_length=1000)] | None = Field(
        None, description="Win over link figures, interpolated in log(nodes), log(bytes)."
    )
    expert_dispatch: Literal["all-to-all", "hierarchical"] | None = Field(
        None,
        description="How tokens reach experts in other domains: once for each expert, or once for each domain (DeepEP, "
        "HybridEP set up) on megatron-lm and fsdp2. Left out: all-to-all.",
    )


class Host(RequestModel):
    """One host: needed for offload."""

    memory_gib: Gib | None = Field(None, description="DRAM, GiB.")
    memory_gb_per_s: Rate | None = Field(None, description="DRAM bandwidth, 10^9 byte/s.")
    cpu_cores: Count | None = Field(None, description="Physical cores of the host.")
    pcie_gb_per_s: Rate | None = Field(None, description="Of one GPU's slot, one direction, 10^9 byte/s.")
    pcie_shared_by: Count | None = Field(None, description="GPUs that share that path.")
    cxl_gib: TierGib | None = Field(None, description="CXL memory, filled after DRAM, GiB; left out: none.")
    cxl_gb_per_s: TierRate | None = Field(None, description="CXL bandwidth, 10^9 byte/s.")
    nvme_gib: TierGib | None = Field(None, description="NVMe, GiB; left out: none.")
    nvme_read_gb_per_s: TierRate | None = Field(None, description="Of all drives together, 10^9 byte/s.")
    nvme_write_gb_per_s: TierRate | None = Field(None, description="Of all drives together, 10^9 byte/s.")


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
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = Field(description="GPUs of one host.")
    gpu: GpuInput = Field(description="A name of `catalog/gpus`, or a specification.")
    nvlink_domain_gpus: Degree | None = Field(None, description="GPUs of this job in one NVLink domain.")
    intra_node: IntraNode | None = Field(None, description="The link inside a domain; left out: the GPU's usual.")
    inter_node: InterNode | None = Field(None, description="The fabric between domains; left out: the usual.")
    host: Host | None = Field(None, description="Left out: unknown, and offload is not proposed.")
    gpu_free_memory_gib: Gib | None = Field(None, description="The least that is free on any card, GiB.")
    usd_per_gpu_hour: Annotated[float, Field(ge=1e-6, le=1e6)] | None = Field(None, description="Price, USD.")


def _cluster_tag(value: Any) -> str:
    named = "preset" in value if isinstance(value, dict) else isinstance(value, ClusterPreset)
    return PRESET_TAG if named else EXPLICIT_TAG


ClusterInput = Annotated[
    Annotated[ClusterPreset, Tag(PRESET_TAG)] | Annotated[ClusterSpec, Tag(EXPLICIT_TAG)],
    Discriminator(_cluster_tag),
    Field(examples=[examples.CLUSTER, examples.EXPLICIT_CLUSTER]),
]
