"""PyTorch fully_shard with DTensor tensor parallelism and torch.distributed.pipelining, as torchtitan uses them."""

from cost_models.framework import Framework

FSDP2 = Framework(
    name="fsdp2",
    version="PyTorch 2.9, torchtitan 0.2",
    zero_stages=(0, 2, 3),  # 0: replicate (DDP composition); 2: reshard_after_forward=False; 3: True
    pipeline_zero_stages=(0, 2, 3),
    pipeline_schedules=("1f1b", "interleaved", "gpipe", "zero-bubble"),
    tensor_parallel=True,
    context_parallel_kinds=("all-gather", "ring"),  # rotate method allgather (torchtitan's default), alltoall
    expert_parallel=True,
    expert_tensor_parallel=True,
    experts_need_sequence_parallel=False,
    replicated_shards=True,  # HSDP
    secondary_shards=False,
    uneven_layers=True,
    interleaving_needs_whole_rounds=False,
    activation_checkpointing=("none", "selective", "full"),
    recompute_modules=(),
    offloads=("optimizer-and-parameters", "activations"),  # CPUOffloadPolicy keeps parameters and states on the host
    offload_zero_stages={"optimizer-and-parameters": (2, 3), "activations": (0, 2, 3)},
    precisions=("bf16", "fp16", "fp8", "nvfp4", "fp32"),
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "muon"),
    fine_tuning=("lora", "qlora"),
    launch_targets=("torchtitan", "accelerate"),
    zero_stage=3,
    zero_stage_with_pipeline=2,
    sequence_parallel_with_tensor=True,
    expert_tensor_follows_tensor=False,
    embedding_and_loss_count_as_layers=False,
    parameter_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "nvfp4": "fp32", "fp32": "fp32"},
    gradient_dtype={"bf16": "fp32", "fp16": "fp32", "fp8": "fp32", "nvfp4": "fp32", "fp32": "fp32"},
    optimizer_state_dtype="fp32",
    kernels="partly-fused",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=True,
    expandable_segments=True,  # torchtitan's run_train.sh sets it; torch's own default is false
    reduces_every_micro_batch=(0, 2, 3),
    hides_parameter_gather=True,
    data_parallel_overlap=0.9,
    hidden_tensor_traffic=0.0,  # async TP is off by default
    fused_gradient_accumulation=False,
    casts_weights=False,  # MixedPrecisionPolicy casts the shard
    step_overhead_seconds=1.0e-2,
    operator_overhead=1.0,
)
