"""PyTorch FullyShardedDataParallel (flat parameters), as Composer, llm-foundry and Accelerate use it."""

from cost_models.framework import Framework

FSDP1 = Framework(
    name="fsdp1",
    version="PyTorch 2.9",
    zero_stages=(0, 2, 3),  # NO_SHARD, SHARD_GRAD_OP, FULL_SHARD
    pipeline_zero_stages=(),
    pipeline_schedules=(),
    tensor_parallel=False,
    context_parallel_kinds=(),
    expert_parallel=False,
    expert_tensor_parallel=False,
    experts_need_sequence_parallel=False,
    replicated_shards=True,  # HYBRID_SHARD
    secondary_shards=False,
    uneven_layers=False,
    interleaving_needs_whole_rounds=False,
    activation_checkpointing=("none", "full"),
    recompute_modules=(),
    offloads=("optimizer-and-parameters", "activations"),  # CPUOffload(offload_params=True)
    offload_zero_stages={"optimizer-and-parameters": (2, 3), "activations": (0, 2, 3)},
    precisions=("bf16", "fp16", "fp8", "fp32"),
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor"),
    fine_tuning=("lora", "qlora"),
    launch_targets=("accelerate",),
    zero_stage=3,
    zero_stage_with_pipeline=3,
    sequence_parallel_with_tensor=False,
    expert_tensor_follows_tensor=False,
    embedding_and_loss_count_as_layers=False,
    parameter_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "fp32": "fp32"},
    gradient_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "fp32": "fp32"},
    optimizer_state_dtype="fp32",
    kernels="partly-fused",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=True,
    expandable_segments=False,
    reduces_every_micro_batch=(2, 3),  # without no_sync(), as Composer and Accelerate run it
    hides_parameter_gather=True,
    data_parallel_overlap=0.9,
    hidden_tensor_traffic=0.0,
    fused_gradient_accumulation=False,
    casts_weights=False,  # MixedPrecision casts the shard
    step_overhead_seconds=1.0e-2,
    operator_overhead=1.0,
)
