"""PyTorch DistributedDataParallel under autocast, and single-device training."""

from cost_models.framework import Framework

DDP = Framework(
    name="ddp",
    version="PyTorch 2.9",
    zero_stages=(0,),
    pipeline_zero_stages=(),
    pipeline_schedules=(),
    tensor_parallel=False,
    context_parallel_kinds=(),
    expert_parallel=False,
    expert_tensor_parallel=False,
    experts_need_sequence_parallel=False,
    replicated_shards=False,
    secondary_shards=False,
    uneven_layers=False,
    interleaving_needs_whole_rounds=False,
    activation_checkpointing=("none", "full"),
    recompute_modules=(),
    offloads=("activations",),
    offload_zero_stages={"activations": (0,)},
    precisions=("bf16", "fp16", "fp8", "fp32"),
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor"),
    fine_tuning=("lora", "qlora"),
    launch_targets=("torchrun", "accelerate"),
    zero_stage=0,
    zero_stage_with_pipeline=0,
    sequence_parallel_with_tensor=False,
    expert_tensor_follows_tensor=False,
    embedding_and_loss_count_as_layers=False,
    parameter_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "fp32": "fp32"},
    gradient_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "fp32": "fp32"},
    optimizer_state_dtype="fp32",
    kernels="eager",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=False,  # torch's default keeps gradients beside the buckets
    expandable_segments=False,
    reduces_every_micro_batch=(),  # no_sync() until the last micro-batch
    hides_parameter_gather=False,
    data_parallel_overlap=0.9,
    hidden_tensor_traffic=0.0,
    fused_gradient_accumulation=False,
    casts_weights=True,  # torch.autocast
    step_overhead_seconds=1.0e-2,
    operator_overhead=1.0,
)
