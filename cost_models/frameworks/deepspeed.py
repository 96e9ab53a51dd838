"""DeepSpeed's engine around Hugging Face or Megatron-style modules."""

from cost_models.framework import Framework

DEEPSPEED = Framework(
    name="deepspeed",
    version="DeepSpeed 0.18",
    zero_stages=(0, 1, 2, 3),
    pipeline_zero_stages=(0, 1),  # PipelineEngine refuses ZeRO-2 and ZeRO-3
    replication_with_model_parallel=True,
    pipeline_schedules=("1f1b",),  # runtime/pipe/schedule.py TrainSchedule
    zero_bubble_chunks=(),
    tensor_parallel=True,  # AutoTP training, Megatron mpu
    context_parallel_kinds=("all-to-all",),  # Ulysses, arXiv 2309.14509
    context_chunks=1,
    expert_parallel=True,
    expert_zero_stages=(0, 1, 2),  # engine.py refuses its MoE layers with stage 3
    hierarchical_dispatch=False,
    expert_tensor_parallel=True,
    expert_tensor_is_tensor_or_one=False,
    experts_need_sequence_parallel=False,
    replicated_shards=True,  # MiCS
    replicate_zero_stages=(3,),  # MiCS_Optimizer is a stage-3 optimizer
    secondary_shards=True,  # hpZ, arXiv 2306.10209
    uneven_layers=True,  # PipelineModule(partition_method=...)
    interleaving_needs_whole_rounds=False,
    activation_checkpointing=("none", "full"),
    checkpoints_in_part=True,
    recompute_modules=(),
    offloads=("optimizer", "optimizer-and-parameters", "nvme", "activations"),
    offload_zero_stages={
        "optimizer": (1, 2, 3),
        "optimizer-and-parameters": (3,),
        "nvme": (3,),
        "activations": (0, 1, 2, 3),
    },
    partial_offload_zero_stages={"optimizer": (3,), "optimizer-and-parameters": (3,)},  # Twin-Flow's ratio
    offloads_activations_alone=False,
    precisions=("bf16", "fp16", "fp32"),
    optimizers=("adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "muon"),
    fine_tuning=("lora", "qlora"),
    launch_targets=("deepspeed", "hf-trainer", "accelerate"),
    vocabulary_multiple=1,
    zero_stage=0,
    zero_stage_with_pipeline=0,
    sequence_parallel_with_tensor=False,
    expert_tensor_follows_tensor=False,
    embedding_and_loss_count_as_layers=False,
    splits_layers_by_cost=False,
    parameter_dtype={"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"},
    gradient_dtype={"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"},  # data_types.grad_accum_dtype left out
    optimizer_state_dtype="fp32",
    kernels="eager",
    fp8_recipe="tensorwise",
    overlap_communication=True,
    gradient_as_bucket_view=True,
    expandable_segments=False,
    memory_error=0.12,  # the median over all other frameworks: few runs of each tell all of their arguments
    reduces_every_micro_batch=(2, 3),  # zero/stage_1_and_2.py partitions gradients in the backward hooks
    reduces_after_backward=(),
    hides_parameter_gather=False,  # all_gather_dp_groups at the end of step()
    fused_gradient_accumulation=False,
    merged_projections=False,
    casts_weights=False,
    keeps_fp32_masters=True,
    requantised_zero_stages=(),
    copies_gradients_to_fp32=True,  # single_partition_of_fp32_groups
    persistent_gradients=(3,),  # stage3.py grad_partitions_flat_buffer
    stage_2_shards_weights=False,
    pipeline_keeps_whole_gradients=False,
    autocast_weight_copies=False,
    flat_optimizer=True,  # ZeRO steps flat partitions
    muon_by_tensor=False,
    foreach_optimizer=False,  # FusedAdam
    regathers_sequence_parallel_inputs=True,  # Megatron-style modules
    gather_buffers=0,
    keeps_receive_buffers=False,
    keeps_pipeline_outputs=True,
    weight_gradient_placeholders=False,
    fp8_weight_copies=0,
    nvfp4_bf16_tail=0,
    fp8_saved_inputs=False,
    gathered_blocks=2,
    reduction_dtype_bytes=2,
    reduces_on_own_stream=False,
    reduction_blocks=0,  # buckets of fixed size instead
    bucket_elements=5e8,  # reduce_bucket_size
    live_parameter_elements=1e9,  # stage3_max_live_parameters
    embedding_stays_gathered=False,
    loss_fp32_copies=3,
    loss_logit_copies=0,
    gradients_beside_buckets=False,
    gathers_every_micro_batch=(3,),
    reduces_in_16_bit=False,
    flattens_weights=True,
    gated_product_fused=True,
    attention_output_copied=False,
    checkpoint_stops_early=False,
    newest_attention=False,  # attn_implementation flash_attention_2
    bucket_bytes_per_gradient=0,
    compiles_loss=False,
    embeddings_step_in_fp32=True,  # transformers' Trainer (GlobalOptimManager)
    adapters_in_fp32=False,
    fused_loss_in_place=False,
    states_follow_weights=False,
    step_elements=1e9,  # sub_group_size
    offloads_gradients=True,
    splits_pipeline_traffic=False,
    shards_whole_experts=False,
    shards_quantisation_constants=False,
    frozen_weights_have_gradients=False,
)
