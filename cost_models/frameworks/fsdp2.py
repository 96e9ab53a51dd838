"""PyTorch fully_shard with DTensor tensor parallelism and torch.distributed.pipelining, as torchtitan uses them."""

from cost_models.framework import Framework

FSDP2 = Framework(
    name="fsdp2",
    version="PyTorch 2.9, torchtitan 0.2",
    zero_stages=(0, 2, 3),  # 0: replicate (DDP composition); 2: reshard_after_forward=False; 3: True
    pipeline_zero_stages=(0, 2, 3),
    replication_with_model_parallel=False,  # torchtitan: "DDP has not supported > 1D parallelism"
    pipeline_schedules=("1f1b", "interleaved", "gpipe", "zero-bubble"),
    zero_bubble_chunks=(2,),  # ScheduleZBVZeroBubble
    tensor_parallel=True,
    context_parallel_kinds=("all-gather", "ring"),  # rotate method allgather (torchtitan's default), alltoall
    context_chunks=2,  # torch.distributed.tensor.experimental: head-tail load balancing
    expert_parallel=True,
    expert_zero_stages=(0, 2, 3),
    expert_tensor_parallel=True,
    expert_tensor_is_tensor_or_one=True,  # torchtitan ParallelDims
    experts_need_sequence_parallel=False,
    replicated_shards=True,  # HSDP
    replicate_zero_stages=(2, 3),
    secondary_shards=False,
    uneven_layers=True,
    interleaving_needs_whole_rounds=True,  # ScheduleInterleaved1F1B
    activation_checkpointing=("none", "selective", "full"),
    recompute_modules=(),
    offloads=("optimizer-and-parameters", "activations"),  # CPUOffloadPolicy keeps parameters and states on the host
    offload_zero_stages={"optimizer-and-parameters": (2, 3), "activations": (0, 2, 3)},
    precisions=("bf16", "fp16", "fp8", "nvfp4", "fp32"),
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "muon"),
    fine_tuning=("lora", "qlora"),
    launch_targets=("torchtitan", "accelerate"),
    vocabulary_multiple=1,
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
    fused_gradient_accumulation=False,
    casts_weights=False,  # MixedPrecisionPolicy casts the shard
    keeps_fp32_masters=False,
    copies_gradients_to_fp32=False,
    persistent_gradients=False,  # zero_grad(set_to_none=True)
    stage_2_shards_weights=True,
    pipeline_keeps_whole_gradients=True,  # set_requires_gradient_sync(False)
    autocast_weight_copies=False,
    flat_optimizer=False,  # DTensors keep their shape
    muon_by_tensor=False,
    foreach_optimizer=False,  # torchtitan: fused
    regathers_sequence_parallel_inputs=False,  # DTensor keeps the gathered input
    keeps_pipeline_outputs=True,  # fwd_cache
    weight_gradient_placeholders=False,
    fp8_weight_copies=0,  # torchao casts on the fly
    fp8_saved_inputs=False,
    gathered_blocks=2,
    reduction_dtype_bytes=4,  # reduce_dtype float32
    reduction_blocks=2,  # the input of one reduce-scatter is freed at the next
    bucket_elements=0,
    live_parameter_elements=0,
    embedding_stays_gathered=False,
    loss_fp32_copies=3,  # log-probabilities, their gradient, that of the logits
    loss_logit_copies=0,
    gradients_beside_buckets=False,
    gathers_every_micro_batch=(2, 3),
    reduces_in_16_bit=False,  # torchtitan: mixed_precision_reduce = float32
    flattens_weights=False,
    gated_product_fused=True,
    attention_output_copied=False,
    bucket_bytes_per_gradient=0,
    compiles_loss=True,  # torchtitan/components/loss.py build_cross_entropy_loss
    states_follow_weights=True,
    step_elements=0,
    offloads_gradients=True,
    splits_pipeline_traffic=False,
    shards_whole_experts=True,  # torchtitan: Shard(0), Shard(1) with more ranks than experts
    frozen_weights_have_gradients=False,
)
