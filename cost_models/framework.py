"""What a training framework can run, its defaults, and what it keeps in memory and overlaps.

Each framework is one module of `cost_models.frameworks` that fills in a `Framework`. Everything that the rules, the
memory model and the time model need to know about a framework is a field here, so that no formula asks for a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework. Tuples hold the contract's values that it can run."""

    name: str
    version: str
    """Which release the statements below were read from."""

    zero_stages: tuple[int, ...]
    pipeline_zero_stages: tuple[int, ...]
    """ZeRO stages that run together with a pipeline; empty: no pipeline."""
    pipeline_schedules: tuple[str, ...]
    tensor_parallel: bool
    context_parallel_kinds: tuple[str, ...]
    """The first is the default; empty: no context parallelism."""
    expert_parallel: bool
    expert_tensor_parallel: bool
    experts_need_sequence_parallel: bool
    """Tensor and expert parallelism together run only with sequence parallelism."""
    replicated_shards: bool
    """data_parallel_replicate_size > 1 (HSDP, MiCS, several optimizer instances)."""
    secondary_shards: bool
    """secondary_shard_size > 1 (hpZ)."""
    uneven_layers: bool
    """Stages may hold different numbers of layers."""
    interleaving_needs_whole_rounds: bool
    """Micro-batches must be a multiple of the pipeline size under interleaving."""
    activation_checkpointing: tuple[str, ...]
    recompute_modules: tuple[str, ...]
    offloads: tuple[str, ...]
    """Besides `none`."""
    offload_zero_stages: Mapping[str, tuple[int, ...]]
    """ZeRO stages with which each kind of offload runs."""
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    fine_tuning: tuple[str, ...]
    launch_targets: tuple[str, ...]

    zero_stage: int
    zero_stage_with_pipeline: int
    sequence_parallel_with_tensor: bool
    expert_tensor_follows_tensor: bool
    embedding_and_loss_count_as_layers: bool
    """Default layout where the layers do not divide: the two ends counted as a layer each."""
    parameter_dtype: Mapping[str, str]
    """Stored weights, by precision."""
    gradient_dtype: Mapping[str, str]
    optimizer_state_dtype: str
    kernels: str
    fp8_recipe: str
    overlap_communication: bool
    gradient_as_bucket_view: bool
    expandable_segments: bool
    """What the framework's own launch scripts give PyTorch's allocator (PYTORCH_CUDA_ALLOC_CONF)."""

    reduces_every_micro_batch: tuple[int, ...]
    """ZeRO stages at which gradients are reduced after every micro-batch (with a pipeline only after the last)."""
    hides_parameter_gather: bool
    """ZeRO-1: updated parameters are gathered under the next forward, bucket by bucket; False: at the step's end."""
    data_parallel_overlap: float
    """Share of the computation that can hide data-parallel traffic, where communication overlaps."""
    hidden_tensor_traffic: float
    """Share of the backward's tensor-parallel traffic that runs under the weight gradients."""
    fused_gradient_accumulation: bool
    """The weight gradient's kernel adds to the accumulated gradient itself."""
    casts_weights: bool
    """16-bit copies of fp32 weights are made on use (autocast); False: stored so, or cast in the shard."""
    step_overhead_seconds: float
    """Once a step on the host: gradient norm, loss and schedule, hooks, Python."""
    operator_overhead: float
    """CPU time to issue an operator, in units of the plain PyTorch one: wrappers, hooks, checks."""
