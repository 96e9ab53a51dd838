"""Where it is trained: one kind of GPU, two levels of links, and the host behind them. Bytes and seconds throughout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

IntraNodeKind = Literal["nvlink", "pcie", "xgmi", "hccs"]
InterNodeKind = Literal["infiniband", "roce", "efa", "ethernet"]
ExpertDispatch = Literal["all-to-all", "hierarchical"]
Generation = Literal[
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4", "gaudi2", "gaudi3", "ascend"
]
DIRECT_CARDS: Final = 4
PROCESSORS: Final = 2
"""Of a host for more cards than one processor's lanes can feed."""


@dataclass(frozen=True)
class Gpu:
    """One device as torch sees it. Peaks are dense; a precision that is missing is not supported."""

    name: str
    memory_bytes: float
    """Total as `torch.cuda.get_device_properties` reports it."""
    memory_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    """By `bf16 fp16 fp8 fp4 tf32 fp32`."""
    tdp_watts: float
    generation: Generation | None
    """None: a GPU that the catalog does not know; priced from its datasheet alone."""
    multiprocessors: int
    """Over which the tiles of a matrix product are spread."""
    chip: str | None
    """The silicon, which GPUs of several names share; None where the generation is."""
    flash_attention: bool = True

    def supports(self, precision: str) -> bool:
        """Whether a layer runs natively in `precision`. Under fp8 and nvfp4 only its linear layers do; attention runs
        in bf16 (Transformer Engine, torchao)."""
        needed = {"fp8": ("fp8", "bf16"), "nvfp4": ("fp4", "bf16")}.get(precision, (precision,))
        return all(peak in self.peak_flops_per_s for peak in needed)


@dataclass(frozen=True, slots=True)
class NvlinkBridge:
    """Pairs (or more) of PCIe cards joined by a bridge."""

    gpus: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class IntraNodeLink:
    """The link inside one NVLink domain (or one host): what one GPU sends, one direction."""

    kind: IntraNodeKind
    bytes_per_s: float
    peer_to_peer: bool = True
    nvlink_bridge: NvlinkBridge | None = None
    mesh_gpus: int | None = None
    """GPUs that links join all to all, without a switch between: each pair has its own share of what one sends."""
    path_gpus: int | None = None
    """Most GPUs behind one PCIe switch, where a topology shows it."""


@dataclass(frozen=True, slots=True)
class MeasuredBandwidth:
    """A bus bandwidth as nccl-tests reports it."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    nodes: int
    message_bytes: int
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class InterNodeLink:
    """The fabric between domains: what one GPU sends, one direction."""

    kind: InterNodeKind
    bytes_per_s: float
    oversubscription: float = 1.0
    measured: tuple[MeasuredBandwidth, ...] = ()
    expert_dispatch: ExpertDispatch = "all-to-all"
    """How tokens reach experts in other domains where the framework can choose: by NCCL, once for each expert; or by
    DeepEP or HybridEP, once for each domain, which drivers and hosts must be set up for (GPU-initiated RDMA)."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host's memory, PCIe and NVMe, shared by its GPUs."""

    memory_bytes: float
    memory_bytes_per_s: float
    cpu_cores: int
    pcie_bytes_per_s: float
    """Of one GPU's slot, one direction."""
    pcie_shared_by: int = 1
    cxl_bytes: float = 0.0
    cxl_bytes_per_s: float = 0.0
    nvme_bytes: float = 0.0
    nvme_read_bytes_per_s: float = 0.0
    nvme_write_bytes_per_s: float = 0.0

    def gpu_bytes_per_s(self, gpus: int) -> float:
        """Between one of its `gpus` and the memory that they share, one direction, when all use their slots at once."""
        return min(self.pcie_bytes_per_s / self.pcie_shared_by, self.memory_bytes_per_s / gpus)


def usual_path_gpus(gpus_per_node: int, link: IntraNodeLink) -> int:
    """Cards behind one path to the host where nothing is stated.

    The lanes of a processor feed four x16 cards directly; in hosts with more of them each processor has a PCIe switch
    (`nvidia-smi topo` of eight RTX 4090: NVIDIA/nccl-tests issue 307).
    """
    if link.path_gpus is not None:
        return link.path_gpus
    if link.peer_to_peer or gpus_per_node <= DIRECT_CARDS:
        return 1
    return math.ceil(gpus_per_node / PROCESSORS)


@dataclass(frozen=True)
class Cluster:
    """`nodes` hosts of `gpus_per_node` equal GPUs."""

    name: str | None
    nodes: int
    gpus_per_node: int
    gpu: Gpu
    nvlink_domain_gpus: int
    """How many GPUs of this job share one NVLink domain: more than a host on NVL72, 1 on PCIe cards."""
    intra_node: IntraNodeLink
    inter_node: InterNodeLink
    host: Host | None
    gpu_free_memory_bytes: float | None = None
    usd_per_gpu_hour: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """All GPUs; a plan uses every one."""
        return self.nodes * self.gpus_per_node

    @property
    def host_path_gpus(self) -> int:
        """Cards behind one path to the host, which all traffic takes where there is no peer-to-peer access."""
        return usual_path_gpus(self.gpus_per_node, self.intra_node) if self.host is None else self.host.pcie_shared_by

    @property
    def capacity_bytes(self) -> float:
        """What one job may use of the least free card."""
        return self.gpu.memory_bytes if self.gpu_free_memory_bytes is None else self.gpu_free_memory_bytes

    @property
    def identity(self) -> str:
        """What runs are counted as one cluster's: its name; without one its GPU and links. However many nodes of it a
        run had."""
        if self.name is not None:
            return self.name
        within, between = self.intra_node, self.inter_node
        bridge = within.nvlink_bridge
        links = (
            within.kind,
            f"{within.bytes_per_s:.6g}",
            "" if bridge is None else f"{bridge.gpus}x{bridge.bytes_per_s:.6g}",
            between.kind,
            f"{between.bytes_per_s:.6g}",
        )
        return "/".join((self.gpu.name, *links))
