"""What Megatron-LM has no setting for, field by field: nothing that was planned is dropped on the way.

Source: as `megatron_arguments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from search.launch.job import LaunchJob
from search.launch.megatron_arguments import (
    FIRST_PIPELINE_WITHOUT_OVERLAP,
    is_precision_aware,
    recomputed_in_each_chunk,
    recomputes_all,
    uses_fsdp,
)
from search.launch.megatron_model import unexpressible
from search.launch.megatron_words import FP8_FORMATS, MUONS

Refusals = dict[str, str]

WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "data_parallel_size": "what remains of the GPUs; every launcher is told how many there are",
    "expert_imbalance": "what the data and the router make of it, not a setting",
    "training_tokens": "rounded up to whole steps in --train-iters",
}
"""Fields that no argument has to carry."""
STORED: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("bf16", "fp8"),
    "nvfp4": ("bf16",),
    "fp32": ("fp32",),
}
"""precision → parameter_dtype."""
GRADIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("fp32", "bf16"),
    "fp16": ("fp16", "fp32"),
    "fp8": ("fp32", "bf16"),
    "nvfp4": ("fp32", "bf16"),
    "fp32": ("fp32",),
}
"""precision → gradient_dtype."""


def megatron_refusals(job: LaunchJob) -> Refusals:
    """Field → why Megatron-LM's arguments cannot say it; empty: they say everything."""
    refusals: Refusals = {}
    for refuse in (_shape, _fixed, _pipeline, _experts, _dtypes, _optimizer, _offload, _recomputation, _graphs):
        for field, why in refuse(job).items():
            refusals.setdefault(field, why)
    return refusals


def fine_tuning_refusal(job: LaunchJob) -> Refusals:
    """Megatron-LM itself has no adapters; Megatron-Bridge, on the same core, has."""
    tuning = job.workload.fine_tuning
    if tuning is None:
        return {}
    return {"fine_tuning": f"Megatron-LM has no {tuning.method}; the target megatron-bridge has LoRA"}


def _shape(job: LaunchJob) -> Refusals:
    why = unexpressible(job.model)
    return {} if why is None else {"model": f"pretrain_gpt.py does not build {job.model.name}: {why}"}


def _fixed(job: LaunchJob) -> Refusals:
    """Fields of which it has one value only."""
    strategy = job.strategy
    only: dict[str, tuple[tuple[Any, ...], str]] = {
        "secondary_shard_size": ((1,), "there is no second copy of the weights"),
        "compile": ((False,), "its layers are not compiled as a whole"),
        "kernels": (("fused", "partly-fused"), "its layers are Transformer Engine's"),
        "gradient_as_bucket_view": ((True,), "gradients always live in the buckets"),
        "checkpoint_loading": (("sharded",), "each rank loads its own part"),
        "checkpoint_saving": (("sharded",), "each rank saves its own part"),
    }
    return {
        name: f"{why} ({name} {strategy[name]})" for name, (values, why) in only.items() if strategy[name] not in values
    }


def _pipeline(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    refusals: Refusals = {}
    if strategy["pipeline_schedule"] not in ("1f1b", "interleaved"):
        why = f"Megatron-Core has no {strategy['pipeline_schedule']} schedule (a fork of it has zero-bubble)"
        refusals["pipeline_schedule"] = why
    stages = strategy["pipeline_parallel_size"]
    if (
        strategy["virtual_pipeline_size"] > 1
        and not strategy["overlap_communication"]
        and stages < FIRST_PIPELINE_WITHOUT_OVERLAP
    ):
        refusals["overlap_communication"] = "interleaving over two stages always overlaps its traffic"
    return refusals


def _experts(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    mixtures = [block.experts for block in job.model.blocks if block.experts]
    tensor = strategy["expert_tensor_parallel_size"]
    if not mixtures:
        return {}
    refusals: Refusals = {}
    if strategy["precision"] == "fp16" and strategy["expert_parallel_size"] > 1:
        refusals["precision"] = "expert parallelism does not run in fp16"
    if tensor > 1 and any(linear.bias for linear in mixtures[0].routed.linears):
        refusals["expert_tensor_parallel_size"] = "experts with biases are not split over tensor ranks"
    ranks = strategy["tensor_parallel_size"] * strategy["context_parallel_size"] * strategy["data_parallel_size"]
    expert_data = ranks // (tensor * strategy["expert_parallel_size"])
    replicas = strategy["data_parallel_replicate_size"]
    if expert_data % replicas:
        refusals["data_parallel_replicate_size"] = (
            f"{replicas} optimizer instances do not divide the {expert_data} data ranks of an expert"
        )
    return refusals


def _dtypes(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    precision = strategy["precision"]
    refusals: Refusals = {}
    for name, known in (("parameter_dtype", STORED), ("gradient_dtype", GRADIENTS)):
        if strategy[name] not in known[precision]:
            refusals[name] = f"with precision {precision} it is {' or '.join(known[precision])}, not {strategy[name]}"
    if precision == "fp8" and strategy["fp8_recipe"] not in FP8_FORMATS:
        refusals["fp8_recipe"] = f"there is no {strategy['fp8_recipe']} recipe"
    if strategy["parameter_dtype"] == "fp8" and strategy["zero_stage"] == 0:
        refusals["parameter_dtype"] = "weights are kept in fp8 with the distributed optimizer or Megatron-FSDP only"
    if strategy["parameter_dtype"] == "fp8" and strategy["offload"] == "optimizer":
        refusals["parameter_dtype"] = "weights are not kept in fp8 where the optimizer is on the CPU"
    return refusals


def _optimizer(job: LaunchJob) -> Refusals:
    strategy, optimizer = job.strategy, job.workload.optimizer
    refusals: Refusals = {}
    if optimizer == "adafactor":
        refusals["optimizer"] = "there is no Adafactor"
    if optimizer == "muon" and strategy["zero_stage"] not in MUONS:
        refusals["optimizer"] = "Muon does not run with Megatron-FSDP"
    if optimizer == "muon" and strategy["data_parallel_replicate_size"] > 1:
        refusals["data_parallel_replicate_size"] = "Muon's states are shared over all data ranks"
    if is_precision_aware(job) and not optimizer.startswith("adam"):
        field = "offload" if strategy["offload"] == "optimizer" else "optimizer_state_dtype"
        refusals[field] = f"the precision-aware optimizer behind it is Adam, not {optimizer}"
    elif strategy["optimizer_state_dtype"] != "fp32" and strategy["zero_stage"] == 0:
        refusals["optimizer_state_dtype"] = "states in another dtype than fp32 need the distributed optimizer"
    elif strategy["optimizer_state_dtype"] != "fp32" and strategy["offload"] == "optimizer":
        refusals["optimizer_state_dtype"] = "states on the CPU are in fp32"
    if optimizer == "adamw-8bit" and strategy["optimizer_state_dtype"] != "int8":
        refusals["optimizer_state_dtype"] = f"8-bit AdamW has states of 8 bit, not {strategy['optimizer_state_dtype']}"
    return refusals


def _offload(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    kind = strategy["offload"]
    if kind in ("optimizer-and-parameters", "nvme"):
        return {"offload": "Megatron-LM keeps weights on the GPU (Megatron-DeepSpeed does not)"}
    if kind == "optimizer" and (strategy["zero_stage"] != 1):
        return {"offload": "the optimizer goes to the CPU with the distributed optimizer (zero_stage 1) only"}
    if kind != "activations":
        return {}
    if strategy["offload_fraction"] < 1:
        return {"offload_fraction": "activations are offloaded of all layers but the last"}
    if strategy["pipeline_parallel_size"] > 1:
        return {"offload": "activations are not offloaded with a pipeline"}
    if strategy["activation_checkpointing"] != "none":
        return {"offload": "activations are not offloaded where some are recomputed"}
    return {}


def _recomputation(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    mode = strategy["activation_checkpointing"]
    if "moe_act" in strategy["recompute_modules"] and strategy["precision"] in ("fp16", "fp32"):
        return {"recompute_modules": "moe_act is recomputed in grouped kernels only, which multiply in bf16"}
    if mode == "none" or recomputes_all(strategy):
        return {}
    if mode == "selective":
        return {"checkpointed_layers": "modules are recomputed in all layers or in none"}
    if recomputed_in_each_chunk(strategy) is None:
        wanted = strategy["checkpointed_layers"]
        return {"checkpointed_layers": f"no number of layers in each model chunk makes {wanted} in each stage"}
    return {}


def _graphs(job: LaunchJob) -> Refusals:
    strategy = job.strategy
    if not strategy["cuda_graphs"]:
        return {}
    refusals: Refusals = {}
    if strategy["expandable_segments"]:
        refusals["expandable_segments"] = "captured graphs and segments that grow may crash; it refuses to start"
    if strategy["activation_checkpointing"] == "full":
        refusals["cuda_graphs"] = "layers that are recomputed whole cannot be captured"
    if uses_fsdp(strategy):
        refusals["cuda_graphs"] = "layers that Megatron-FSDP gathers cannot be captured"
    if strategy["offload"] == "activations":
        refusals["cuda_graphs"] = "layers whose activations are offloaded cannot be captured"
    # Whole layers, or attention beside experts.
    captured = ("core_attn",) if any(block.experts for block in job.model.blocks) else ("core_attn", "mlp")
    recomputed = [module for module in strategy["recompute_modules"] if module in captured]
    if job.workload.dropout and recomputed:
        refusals["cuda_graphs"] = f"captured modules with dropout cannot be recomputed ({', '.join(recomputed)})"
    return refusals
