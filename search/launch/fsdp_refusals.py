"""What the scripts for Hugging Face models do not do with PyTorch's own data parallelism: FSDP2, FSDP1, DDP."""

from __future__ import annotations

from typing import Final

from cost_models.strategy import DTYPE_BYTES, DTYPES
from cost_models.units import GIB
from search.launch.hf_settings import STORED
from search.launch.job import LaunchJob
from search.launch.refusals import Only, outside

ZERO_STAGES: Final = {"fsdp2": (2, 3), "fsdp1": (0, 2, 3), "ddp": (0,)}
_LIMITS: Final = (
    Only("secondary_shard_size", (1,), "weights have no second copy"),
    Only("tensor_parallel_size", (1,), "the script for Hugging Face models splits no tensors"),
    Only("pipeline_parallel_size", (1,), "the script for Hugging Face models has no pipeline"),
    Only("expert_parallel_size", (1,), "the script for Hugging Face models keeps all experts together"),
    Only("expert_tensor_parallel_size", (1,), "the script for Hugging Face models splits no expert"),
    Only("sequence_parallel", (False,), "the script for Hugging Face models splits no norms"),
    Only("virtual_pipeline_size", (1,), "the script for Hugging Face models has no pipeline"),
    Only("pipeline_schedule", ("1f1b",), "the script for Hugging Face models has no pipeline"),
    Only("activation_checkpointing", ("none", "full"), "whole layers are recomputed or nothing"),
    Only("cuda_graphs", (False,), "training steps are not captured"),
    Only("overlap_communication", (True,), "gradients are always reduced while backward goes on"),
    Only("precision", ("bf16", "fp16", "fp8", "fp32"), "there is no 4-bit computation"),
)
_OFFLOADS: Final = {"fsdp2": ("none", "optimizer-and-parameters", "activations"), "ddp": ("none", "activations")}


def sharded_refusals(job: LaunchJob) -> dict[str, str]:
    """Strategy field → why neither the launcher nor the script says it."""
    return {
        **outside(job, _LIMITS),
        **outside(job, _by_framework(job)),
        **_layers(job),
        **_dtypes(job),
        **_loading(job),
    }


def _by_framework(job: LaunchJob) -> list[Only]:
    strategy = job.strategy
    framework = strategy["framework"]
    offloads = _OFFLOADS["ddp" if framework == "ddp" else "fsdp2"]
    limits = [
        Only("zero_stage", ZERO_STAGES.get(framework, ()), f"{framework} does not shard like that"),
        Only("offload", offloads, f"{framework} moves nothing else to the host"),
    ]
    if strategy["offload"] != "activations":
        limits.append(Only("offload_fraction", (1.0,), "all weights and states are offloaded or none"))
    if framework != "ddp":
        limits.append(Only("gradient_as_bucket_view", (True,), "FSDP has no buckets beside its gradients"))
    if framework != "fsdp2":
        limits.append(Only("context_parallel_size", (1,), f"{framework} splits no sequences"))
        node = (1, job.cluster.nodes) if framework == "fsdp1" else (1,)
        reason = "shards are replicated over nodes" if framework == "fsdp1" else "every rank is a replica of its own"
        limits.append(Only("data_parallel_replicate_size", node, reason))
    if strategy["context_parallel_size"] > 1:
        limits.append(Only("context_parallel_kind", ("all-gather", "ring"), "torch exchanges keys and values"))
    if strategy["precision"] == "fp8":
        limits.append(Only("fp8_recipe", ("tensorwise", "rowwise"), "torchao has no other recipe for linear layers"))
    return limits


def _layers(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    if strategy["pipeline_parallel_size"] == 1 and list(strategy["layers_per_stage"]) != [job.model.layers]:
        return {"layers_per_stage": "all layers are on one stage"}
    return {}


def _dtypes(job: LaunchJob) -> dict[str, str]:
    """Gradients and states of PyTorch's optimizers have the dtype of the weights that are trained."""
    strategy, tuning = job.strategy, job.workload.fine_tuning
    precision = strategy["precision"]
    own = STORED.get(precision)
    found: dict[str, str] = {}
    known = {"nf4"} if tuning is not None and tuning.method == "qlora" else {"fp32", own}
    if precision == "fp16" and tuning is None:
        known.discard(own)  # GradScaler refuses gradients in fp16
    if strategy["parameter_dtype"] not in known:
        names = " or ".join(sorted(map(str, known)))
        found["parameter_dtype"] = f"with precision {precision} weights are stored in {names}"
    trained = own if strategy["parameter_dtype"] == "nf4" else strategy["parameter_dtype"]
    if strategy["gradient_dtype"] != trained:
        found["gradient_dtype"] = f"gradients of {trained} weights are in {trained} too"
    states = "int8" if job.workload.optimizer == "adamw-8bit" else trained
    if strategy["optimizer_state_dtype"] != states:
        found["optimizer_state_dtype"] = f"states of {job.workload.optimizer} for {trained} weights are in {states}"
    return found


def weights_gib(job: LaunchJob) -> float:
    """All weights as they are stored."""
    return job.model.parameters * DTYPE_BYTES[DTYPES.index(job.strategy["parameter_dtype"])] / GIB


def _loading(job: LaunchJob) -> dict[str, str]:
    """Accelerate knows no rank that reads its own part alone: rank 0 reads all and hands out parts."""
    host = job.cluster.host
    if job.strategy["framework"] == "ddp" or job.strategy["checkpoint_loading"] != "sharded" or host is None:
        return {}
    available = host.memory_bytes / GIB
    if weights_gib(job) <= available:
        return {}
    reason = f"rank 0 reads all weights, {weights_gib(job):.0f} GiB, and its host has {available:.0f} GiB"
    return {"checkpoint_loading": reason}


def loading_notes(job: LaunchJob) -> tuple[str, ...]:
    """How loading differs from what was planned, where it does."""
    if job.strategy["framework"] == "ddp" or job.strategy["checkpoint_loading"] != "sharded":
        return ()
    return (
        "checkpoint_loading: Accelerate has rank 0 read the weights and hand each rank its part; no device ever holds "
        f"more than that, but the host of rank 0 holds all {weights_gib(job):.0f} GiB while it loads.",
    )
