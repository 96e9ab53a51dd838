"""Environment variables that a plan needs whatever starts it, each with its reason.

Nothing is set for its own sake: a variable is here because the plan was priced with it, or because the job would not
start or would hang without it. TORCH_DISTRIBUTED_DEBUG is left alone: its checks would be timed with the job.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from search.launch.job import LaunchJob

NORM_MARGIN: Final = 16
"""Multiprocessors that Transformer Engine's norm kernels leave free: NVIDIA-NeMo/Megatron-Bridge, recipes' `env_vars`
on Hopper (20 on Blackwell is within a few of them)."""
FSDP_STAGES: Final = (2, 3)
"""ZeRO stages that megatron-lm runs as Megatron-FSDP."""
_BLACKWELL: Final = "blackwell"
_AMD: Final = ("cdna2", "cdna3", "cdna4")
_OTHERS: Final = ("gaudi2", "gaudi3", "ascend")
"""Accelerators with their own collectives library and allocator: none of NCCL's or CUDA's variables reach them."""


class Setting(NamedTuple):
    """One environment variable and why it is there."""

    name: str
    value: str
    reason: str


def environment(job: LaunchJob) -> dict[str, str]:
    """Every variable to export on all ranks."""
    return {setting.name: setting.value for setting in settings(job)}


def reasons(job: LaunchJob) -> tuple[str, ...]:
    """A sentence for each variable of `environment`, for the notes of the launch files."""
    return tuple(f"{setting.name}={setting.value}: {setting.reason}" for setting in settings(job))


def settings(job: LaunchJob) -> tuple[Setting, ...]:
    """The variables in the order in which they are exported."""
    if job.cluster.gpu.generation in _OTHERS:
        return tuple(_host(job))
    return (*_allocator(job), *_links(job), *_megatron(job), *_host(job))


def _allocator(job: LaunchJob) -> list[Setting]:
    """Source: PyTorch, "CUDA semantics", optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF (torch 2.9 has
    PYTORCH_ALLOC_CONF too, and reads the old name)."""
    if not job.strategy["expandable_segments"]:
        return []
    name = "PYTORCH_HIP_ALLOC_CONF" if job.cluster.gpu.generation in _AMD else "PYTORCH_CUDA_ALLOC_CONF"
    reason = "the plan's expandable_segments: segments that grow leave less memory reserved and unused"
    return [Setting(name, "expandable_segments:True", reason)]


def _links(job: LaunchJob) -> list[Setting]:
    """Source: NCCL documentation, environment variables."""
    cluster = job.cluster
    found = []
    if not cluster.intra_node.peer_to_peer and cluster.gpus_per_node > 1:
        reason = f"{cluster.gpu.name} has no peer-to-peer access: NCCL would wait for copies that the driver refuses"
        found.append(Setting("NCCL_P2P_DISABLE", "1", reason))
    if cluster.nodes > 1 and cluster.inter_node.kind == "ethernet":
        reason = "the fabric is plain Ethernet: TCP sockets, as the plan was priced, and no search for RDMA devices"
        found.append(Setting("NCCL_IB_DISABLE", "1", reason))
    return found


def _megatron(job: LaunchJob) -> list[Setting]:
    """Source: NVIDIA/Megatron-LM `megatron/training/arguments.py`, validate_args: it refuses to start otherwise."""
    strategy = job.strategy
    if strategy["framework"] != "megatron-lm":
        return []
    found = []
    split = strategy["tensor_parallel_size"] > 1 or strategy["context_parallel_size"] > 1
    if strategy["zero_stage"] in FSDP_STAGES:
        reason = "Megatron-FSDP overlaps on several queues and refuses to start with one"
        found.append(Setting("CUDA_DEVICE_MAX_CONNECTIONS", "8", reason))
    elif split and job.cluster.gpu.generation != _BLACKWELL:
        reason = (
            "one hardware queue, so that tensor- and context-parallel collectives start before the kernels that hide "
            "them; before Blackwell Megatron-LM refuses to start without it"
        )
        found.append(Setting("CUDA_DEVICE_MAX_CONNECTIONS", "1", reason))
    if strategy["overlap_communication"] and strategy["kernels"] == "fused" and job.cluster.gpus > 1:
        reason = f"norm kernels leave {NORM_MARGIN} multiprocessors to the collectives that run beside them"
        found += [Setting(f"NVTE_{way}_LAYERNORM_SM_MARGIN", str(NORM_MARGIN), reason) for way in ("FWD", "BWD")]
    return found


def _host(job: LaunchJob) -> list[Setting]:
    """Source: PyTorch `torch/distributed/run.py`: several processes of one node have OMP_NUM_THREADS=1 unless it is
    set."""
    host = job.cluster.host
    if host is None or job.strategy["offload"] not in ("optimizer", "optimizer-and-parameters", "nvme"):
        return []
    threads = max(host.cpu_cores // job.cluster.gpus_per_node, 1)
    reason = "the optimizer steps on the CPU: each rank has its share of the cores, not the one that torchrun gives it"
    return [Setting("OMP_NUM_THREADS", str(threads), reason)]
