"""A strategy and a workload as Megatron-LM's arguments, and what it has no arguments for.

Source: as `megatron_words`; what goes together with what: `validate_args` there, and `__post_init__` of
TransformerConfig and OptimizerConfig.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from cost_models import layouts
from cost_models.time.placement import domain_gpus
from search.launch.job import LaunchJob
from search.launch.megatron_words import (
    CONTEXT_KINDS,
    FP8_FORMATS,
    FSDP_CHECKPOINTS,
    MUONS,
    SHARDING,
    STATE_DTYPES,
    Options,
    flag,
    option,
)

INITIAL_LOSS_SCALE: Final = 65536
"""2^16, GradScaler's own; Megatron-LM's 2^32 takes sixteen more steps to come down."""
SGD_MOMENTUM: Final = 0.9
FIRST_PIPELINE_WITHOUT_OVERLAP: Final = 3
"""Stages that interleaving needs where it does not overlap its traffic."""


def strategy_arguments(job: LaunchJob) -> Options:
    """Everything that the strategy and the workload ask for; `megatron_refusals` must have found nothing."""
    return {
        **_parallelism(job.strategy),
        **_pipeline(job),
        **_experts(job),
        **_data_parallelism(job),
        **_batch(job),
        **_recomputation(job),
        **_precision(job),
        **_optimizer(job),
        **_offload(job),
        **_kernels(job),
        **_checkpoints(job),
    }


def uses_fsdp(strategy: Mapping[str, Any]) -> bool:
    """Whether weights or gradients are sharded: Megatron-FSDP."""
    return int(strategy["zero_stage"]) in SHARDING


def is_precision_aware(job: LaunchJob) -> bool:
    """Whether the optimizer is the one that keeps states in a chosen dtype, or on the CPU."""
    strategy = job.strategy
    return bool(strategy["optimizer_state_dtype"] != "fp32" or strategy["offload"] == "optimizer")


def layout(strategy: Mapping[str, Any]) -> str:
    """`layers_per_stage` as `--pipeline-model-parallel-layout`: chunks in model order, `t` a layer, ends E and L."""
    chunks = [f"t*{layers}" if layers else "" for layers in strategy["layers_per_stage"]]
    return "E" + "|".join(chunks) + "L"


def micro_batch_group(micro_batches: int, stages: int) -> int:
    """Micro-batches that a chunk takes in a row: as few as the schedule allows.

    Source: Megatron-Core `pipeline_parallel/schedules.py`: at least as many as stages, and so must be the rest.
    """
    return next(
        group
        for group in range(stages, micro_batches + 1)
        if micro_batches % group == 0 or micro_batches % group >= stages
    )


def recomputed_in_each_chunk(strategy: Mapping[str, Any]) -> int | None:
    """`--recompute-num-layers` for `checkpointed_layers`; None: no number does it for all stages."""
    chunks = tuple(strategy["layers_per_stage"])
    return layouts.recomputed_in_each_chunk(chunks, strategy["pipeline_parallel_size"], strategy["checkpointed_layers"])


def recomputes_all(strategy: Mapping[str, Any]) -> bool:
    """Whether the fullest stage recomputes all of its layers."""
    stages, chunks = strategy["pipeline_parallel_size"], strategy["layers_per_stage"]
    return bool(strategy["checkpointed_layers"] >= max(sum(chunks[stage::stages]) for stage in range(stages)))


def _parallelism(strategy: Mapping[str, Any]) -> Options:
    sequence = flag("--sequence-parallel") if strategy["sequence_parallel"] else {}
    return {
        **option("--tensor-model-parallel-size", strategy["tensor_parallel_size"]),
        **sequence,
        **option("--context-parallel-size", strategy["context_parallel_size"]),
        **option("--cp-comm-type", CONTEXT_KINDS[strategy["context_parallel_kind"]]),
        **option("--pipeline-model-parallel-size", strategy["pipeline_parallel_size"]),
    }


def _pipeline(job: LaunchJob) -> Options:
    strategy = job.strategy
    stages, virtual = strategy["pipeline_parallel_size"], strategy["virtual_pipeline_size"]
    arguments: Options = {}
    if len(set(strategy["layers_per_stage"])) > 1:
        arguments = option("--pipeline-model-parallel-layout", layout(strategy))
    elif virtual > 1:
        arguments = option("--num-virtual-stages-per-pipeline-rank", virtual)
    if virtual > 1:
        group = option(
            "--microbatch-group-size-per-virtual-pipeline-stage", micro_batch_group(job.micro_batches, stages)
        )
        arguments = {**arguments, **group}
        if not strategy["overlap_communication"]:
            arguments = {**arguments, **flag("--no-overlap-p2p-communication")}
    return arguments


def _dispatcher(job: LaunchJob) -> Options:
    """As it was priced: DeepEP where the cluster is set up for it and experts lie in several domains."""
    span = job.strategy["expert_parallel_size"] * job.strategy["expert_tensor_parallel_size"]
    if job.cluster.inter_node.expert_dispatch == "hierarchical" and span > domain_gpus(job.cluster):
        return {**option("--moe-token-dispatcher-type", "flex"), **flag("--moe-enable-deepep")}
    return option("--moe-token-dispatcher-type", "alltoall")


def _experts(job: LaunchJob) -> Options:
    strategy = job.strategy
    tensor = option("--expert-tensor-parallel-size", strategy["expert_tensor_parallel_size"])
    if not any(block.experts for block in job.model.blocks):
        # Without experts it splits nothing, but is the tensor size unless it is given.
        return {} if strategy["expert_tensor_parallel_size"] == strategy["tensor_parallel_size"] else tensor
    arguments = {
        **option("--expert-model-parallel-size", strategy["expert_parallel_size"]),
        **tensor,
        **_dispatcher(job),
        **option("--moe-router-load-balancing-type", "aux_loss"),
        **option("--moe-router-dtype", "fp32"),
        **option("--moe-aux-loss-coeff", 0.01),
        **flag("--moe-permute-fusion"),
    }
    # Its grouped kernels multiply in bf16 (or in fp8 and fp4 beneath it).
    grouped = {} if strategy["precision"] in ("fp16", "fp32") else flag("--moe-grouped-gemm")
    return {**arguments, **grouped}


def _data_parallelism(job: LaunchJob) -> Options:
    strategy = job.strategy
    arguments: Options = {}
    if strategy["zero_stage"] and job.workload.optimizer != "muon":
        arguments = flag("--use-distributed-optimizer")
    if uses_fsdp(strategy):
        arguments = {
            **arguments,
            **flag("--use-megatron-fsdp"),
            **option("--data-parallel-sharding-strategy", SHARDING[strategy["zero_stage"]]),
            **flag("--fsdp-double-buffer"),
            **flag("--init-model-with-meta-device"),
        }
    if strategy["data_parallel_replicate_size"] > 1:
        instances = option("--num-distributed-optimizer-instances", strategy["data_parallel_replicate_size"])
        arguments = {**arguments, **instances}
    if strategy["overlap_communication"]:
        arguments = {**arguments, **flag("--overlap-grad-reduce")}
        if "--use-distributed-optimizer" in arguments:
            arguments = {**arguments, **flag("--overlap-param-gather")}
    return arguments


def _batch(job: LaunchJob) -> Options:
    workload = job.workload
    return {
        **option("--seq-length", workload.sequence_length),
        **option("--micro-batch-size", job.strategy["micro_batch_size"]),
        **option("--global-batch-size", workload.global_batch_size),
        **option("--attention-dropout", workload.dropout),
        **option("--hidden-dropout", workload.dropout),
    }


def _recomputation(job: LaunchJob) -> Options:
    strategy = job.strategy
    mode = strategy["activation_checkpointing"]
    if mode == "none":
        return {}
    if mode == "selective":
        modules = option("--recompute-modules", *strategy["recompute_modules"])
        return {**option("--recompute-granularity", mode), **modules}
    method, number = ("uniform", 1) if recomputes_all(strategy) else ("block", recomputed_in_each_chunk(strategy))
    return {
        **option("--recompute-granularity", mode),
        **option("--recompute-method", method),
        **option("--recompute-num-layers", number),
    }


def _precision(job: LaunchJob) -> Options:
    strategy = job.strategy
    precision = strategy["precision"]
    if precision == "fp32":
        return {}
    if precision == "fp16":
        scaling = option("--initial-loss-scale", INITIAL_LOSS_SCALE)
        wide = strategy["gradient_dtype"] == "fp32"
        return {**flag("--fp16"), **scaling, **(flag("--accumulate-allreduce-grads-in-fp32") if wide else {})}
    wide = strategy["gradient_dtype"] == "fp32"
    gradients = flag("--accumulate-allreduce-grads-in-fp32") if wide else flag("--grad-reduce-in-bf16")
    return {**flag("--bf16"), **gradients, **_eight_and_four_bit(job)}


def _eight_and_four_bit(job: LaunchJob) -> Options:
    strategy = job.strategy
    if strategy["precision"] == "nvfp4":
        return {**option("--fp4-format", "e2m1"), **option("--fp4-recipe", "nvfp4")}
    if strategy["precision"] != "fp8":
        return {}
    recipe = strategy["fp8_recipe"]
    arguments = {**option("--fp8-format", FP8_FORMATS[recipe]), **option("--fp8-recipe", recipe)}
    if strategy["parameter_dtype"] == "fp8":
        arguments = {**arguments, **flag("--fp8-param-gather")}
        if recipe == "mxfp8" and not uses_fsdp(strategy):
            # Weights are stored for both directions in 8 bit; gathered, they share the gradients' buffer.
            arguments = {**arguments, **flag("--reuse-grad-buf-for-mxfp8-param-ag")}
    return arguments


def _optimizer(job: LaunchJob) -> Options:
    optimizer = job.workload.optimizer
    if optimizer == "muon":
        return option("--optimizer", MUONS[job.strategy["zero_stage"]])
    if optimizer.startswith("sgd"):
        momentum = SGD_MOMENTUM if optimizer == "sgd-momentum" else 0.0
        return {**option("--optimizer", "sgd"), **option("--sgd-momentum", momentum)}
    arguments = option("--optimizer", "adam")
    if optimizer == "adam":
        # Its Adam decouples the decay; without any there is no difference.
        arguments = {**arguments, **option("--weight-decay", 0.0)}
    return {**arguments, **_states(job)}


def _states(job: LaunchJob) -> Options:
    if not is_precision_aware(job):
        return {}
    strategy = job.strategy
    arguments = flag("--use-precision-aware-optimizer")
    if strategy["gradient_dtype"] == "bf16":
        arguments = {**arguments, **option("--main-grads-dtype", "bf16")}
    dtype = STATE_DTYPES.get(strategy["optimizer_state_dtype"])
    if dtype is not None:
        arguments = {**arguments, **option("--exp-avg-dtype", dtype), **option("--exp-avg-sq-dtype", dtype)}
    return arguments


def _offload(job: LaunchJob) -> Options:
    strategy = job.strategy
    if strategy["offload"] == "activations":
        # What the last layer saves is wanted back at once; Megatron-LM leaves at least one layer on the GPU.
        return option("--cpu-offloading-num-layers", job.model.layers - 1)
    if strategy["offload"] != "optimizer":
        return {}
    overlap = flag("--overlap-cpu-optimizer-d2h-h2d") if strategy["overlap_communication"] else {}
    fraction = option("--optimizer-offload-fraction", strategy["offload_fraction"])
    return {**flag("--optimizer-cpu-offload"), **fraction, **overlap}


def _kernels(job: LaunchJob) -> Options:
    strategy, workload = job.strategy, job.workload
    arguments = {
        **option("--transformer-impl", "transformer_engine"),
        **option("--attention-backend", _attention_backend(job)),
    }
    if strategy["kernels"] == "partly-fused":
        arguments = {**arguments, **flag("--no-bias-swiglu-fusion"), **flag("--no-bias-gelu-fusion")}
    if workload.fused_loss:
        fused = option("--cross-entropy-fusion-impl", "te")
        arguments = {**arguments, **flag("--cross-entropy-loss-fusion"), **fused}
    if strategy["cuda_graphs"]:
        # Whole layers; experts are chosen at run time: only attention is captured beside them.
        experts = any(block.experts for block in job.model.blocks)
        attention = option("--cuda-graph-scope", "attn") if experts else {}
        kind = option("--cuda-graph-impl", "transformer_engine" if experts else "local")
        arguments = {**arguments, **kind, **attention, **flag("--te-rng-tracker")}
    return arguments


def _attention_backend(job: LaunchJob) -> str:
    if job.workload.attention == "eager":
        return "unfused"
    attention = job.model.blocks[0].attention
    # Values narrower than keys, and attention sinks, are cuDNN's.
    needs_cudnn = attention.latent is not None or attention.other_parameters > 0
    return "fused" if needs_cudnn else "flash"


def _checkpoints(job: LaunchJob) -> Options:
    if uses_fsdp(job.strategy):
        return option("--ckpt-format", FSDP_CHECKPOINTS)
    return option("--ckpt-format", "torch" if job.workload.optimizer == "muon" else "torch_dist")


def iterations(job: LaunchJob) -> int | None:
    """Steps for the workload's `training_tokens`, rounded up; None: not said."""
    tokens = job.workload.training_tokens
    return None if tokens is None else math.ceil(tokens / job.workload.tokens)
