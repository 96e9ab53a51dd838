"""Nanotron: 3D parallelism with ZeRO-1 (huggingface/nanotron)."""

from cost_models.framework import Framework

NANOTRON = Framework(
    name="nanotron",
    version="nanotron 0.4",
    zero_stages=(0, 1),
    pipeline_zero_stages=(0, 1),
    pipeline_schedules=("1f1b", "gpipe"),  # OneForwardOneBackwardPipelineEngine, AllForwardAllBackwardPipelineEngine
    tensor_parallel=True,
    context_parallel_kinds=(),
    expert_parallel=False,
    expert_tensor_parallel=False,
    experts_need_sequence_parallel=False,
    replicated_shards=False,
    secondary_shards=False,
    uneven_layers=True,
    interleaving_needs_whole_rounds=False,
    activation_checkpointing=("none", "full"),
    recompute_modules=(),
    offloads=(),
    offload_zero_stages={},
    precisions=("bf16", "fp16", "fp32"),
    optimizers=("adamw", "adam", "sgd", "sgd-momentum"),
    fine_tuning=(),
    launch_targets=("nanotron",),
    zero_stage=0,
    zero_stage_with_pipeline=0,
    sequence_parallel_with_tensor=True,  # tp_mode REDUCE_SCATTER
    expert_tensor_follows_tensor=False,
    embedding_and_loss_count_as_layers=False,
    parameter_dtype={"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"},
    gradient_dtype={"bf16": "fp32", "fp16": "fp32", "fp32": "fp32"},  # accumulate_grad_in_fp32
    optimizer_state_dtype="fp32",
    kernels="fused",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=True,
    expandable_segments=False,
    reduces_every_micro_batch=(),
    hides_parameter_gather=False,  # ZeroDistributedOptimizer gathers after step()
    data_parallel_overlap=0.5,
    hidden_tensor_traffic=0.0,
    fused_gradient_accumulation=False,
    casts_weights=False,
    step_overhead_seconds=1.0e-2,
    operator_overhead=1.0,
)
