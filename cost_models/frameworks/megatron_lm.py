"""Megatron-Core and what is built on it (Megatron-LM, NeMo, Megatron-Bridge, Megatron-DeepSpeed)."""

from cost_models.framework import Framework

MEGATRON_LM = Framework(
    name="megatron-lm",
    version="Megatron-Core 0.14",
    zero_stages=(0, 1, 2, 3),  # 1: distributed optimizer; 2, 3: Megatron-FSDP (optim_grads, optim_grads_params)
    pipeline_zero_stages=(0, 1),
    # Zero-bubble: the sail-sg fork of Megatron-LM (arXiv 2401.10241); Megatron-Core itself has the first two.
    replication_with_model_parallel=True,
    pipeline_schedules=("1f1b", "interleaved", "zero-bubble"),
    zero_bubble_chunks=(1, 2),
    tensor_parallel=True,
    context_parallel_kinds=("ring", "all-gather", "all-to-all"),  # --cp-comm-type p2p, all_gather, a2a
    context_chunks=2,  # get_batch_on_this_cp_rank
    expert_parallel=True,
    expert_zero_stages=(0, 1, 2, 3),
    hierarchical_dispatch=True,  # --moe-token-dispatcher-type flex
    expert_tensor_parallel=True,
    expert_tensor_is_tensor_or_one=False,
    experts_need_sequence_parallel=True,
    replicated_shards=True,  # --num-distributed-optimizer-instances
    replicate_zero_stages=(1, 2, 3),
    secondary_shards=False,
    uneven_layers=True,  # --pipeline-model-parallel-layout
    interleaving_needs_whole_rounds=False,  # any m >= pipeline size since Megatron-Core 0.9 (microbatch group size)
    activation_checkpointing=("none", "selective", "full"),
    checkpoints_in_part=True,
    recompute_modules=("core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe"),
    offloads=("optimizer", "optimizer-and-parameters", "activations"),
    # optimizer: --optimizer-cpu-offload, which needs the (precision-aware) distributed optimizer; parameters too:
    # ZeRO-3 under Megatron-DeepSpeed
    offload_zero_stages={"optimizer": (1,), "optimizer-and-parameters": (3,), "activations": (0, 1, 2, 3)},
    partial_offload_zero_stages={"optimizer": (1,)},  # --optimizer-offload-fraction
    offloads_activations_alone=True,  # megatron/core/transformer/transformer_config.py __post_init__, cpu_offloading
    precisions=("bf16", "fp16", "fp8", "nvfp4", "fp32"),
    # 8-bit moments: --use-precision-aware-optimizer with --exp-avg-dtype fp8
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "muon"),
    fine_tuning=("lora",),
    launch_targets=("megatron-lm", "megatron-bridge"),
    vocabulary_multiple=128,  # --make-vocab-size-divisible-by
    zero_stage=0,
    zero_stage_with_pipeline=0,
    sequence_parallel_with_tensor=True,
    expert_tensor_follows_tensor=True,
    embedding_and_loss_count_as_layers=True,
    splits_layers_by_cost=False,
    parameter_dtype={"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "nvfp4": "bf16", "fp32": "fp32"},
    # --accumulate-allreduce-grads-in-fp32 is implied by --bf16; fp16 keeps 16-bit gradients unless it is given
    gradient_dtype={"bf16": "fp32", "fp16": "fp16", "fp8": "fp32", "nvfp4": "fp32", "fp32": "fp32"},
    optimizer_state_dtype="fp32",
    kernels="fused",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=True,
    expandable_segments=False,
    memory_error=0.05,  # 0.02 SimuMax, 0.03 arXiv 2401.10241, 0.05 its own functional tests
    reduces_every_micro_batch=(2, 3),  # Megatron-FSDP: a layer's gradients leave once they are whole
    reduces_after_backward=(),
    hides_parameter_gather=True,  # --overlap-param-gather
    fused_gradient_accumulation=True,  # --no-gradient-accumulation-fusion turns it off
    merged_projections=True,  # linear_qkv, linear_fc1
    casts_weights=False,
    keeps_fp32_masters=True,
    requantised_zero_stages=(1, 2, 3),  # --fp8-param-gather: DistributedOptimizer, Megatron-FSDP
    copies_gradients_to_fp32=True,  # Float16OptimizerWithFloat16Params
    persistent_gradients=(0, 1, 2, 3),  # ParamAndGradBuffer
    stage_2_shards_weights=False,
    pipeline_keeps_whole_gradients=False,
    autocast_weight_copies=False,
    flat_optimizer=False,
    muon_by_tensor=True,  # LayerWiseDistributedOptimizer
    foreach_optimizer=False,  # Apex / TE FusedAdam
    regathers_sequence_parallel_inputs=True,
    gather_buffers=0,
    keeps_receive_buffers=False,
    keeps_pipeline_outputs=False,  # deallocate_pipeline_outputs
    weight_gradient_placeholders=True,
    fp8_weight_copies=2,  # row- and column-wise (Transformer Engine)
    nvfp4_bf16_tail=0,  # --last-layers-bf16 is an option
    fp8_saved_inputs=True,
    gathered_blocks=2,  # Megatron-FSDP double buffering
    reduction_dtype_bytes=4,  # grad_reduce_in_fp32
    reduces_on_own_stream=False,
    reduction_blocks=2,
    bucket_elements=0,  # reduced in place
    live_parameter_elements=0,
    embedding_stays_gathered=False,
    loss_fp32_copies=1,  # vocab_parallel_cross_entropy works in place on logits.float()
    loss_logit_copies=1,
    gradients_beside_buckets=False,
    gathers_every_micro_batch=(3,),
    reduces_in_16_bit=False,
    flattens_weights=False,
    gated_product_fused=True,
    attention_output_copied=False,
    checkpoint_stops_early=False,  # CheckpointFunction
    newest_attention=True,  # Transformer Engine: cuDNN or FlashAttention-3
    bucket_bytes_per_gradient=0,
    compiles_loss=False,
    embeddings_step_in_fp32=False,
    adapters_in_fp32=False,
    fused_loss_in_place=True,  # Transformer Engine: pytorch/triton/cross_entropy.py (--cross-entropy-fusion-impl te)
    states_follow_weights=False,
    step_elements=0,
    offloads_gradients=False,
    splits_pipeline_traffic=True,
    shards_whole_experts=False,
    shards_quantisation_constants=False,
    frozen_weights_have_gradients=False,
)
