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
    replication_with_model_parallel: bool
    """Data parallelism without sharding (zero_stage 0) runs beside tensor, pipeline or context parallelism."""
    pipeline_schedules: tuple[str, ...]
    zero_bubble_chunks: tuple[int, ...]
    """Chunks of a stage (virtual_pipeline_size) with which its zero-bubble schedule runs."""
    tensor_parallel: bool
    context_parallel_kinds: tuple[str, ...]
    """The first is the default; empty: no context parallelism."""
    context_chunks: int
    """Pieces of the sequence a context rank holds: 2 where causal attention is balanced by pairing early and late."""
    expert_parallel: bool
    expert_zero_stages: tuple[int, ...]
    """ZeRO stages with which expert parallelism runs."""
    hierarchical_dispatch: bool
    """Tokens can reach experts by DeepEP or HybridEP, where the cluster is set up for it."""
    expert_tensor_parallel: bool
    expert_tensor_is_tensor_or_one: bool
    """Experts are split over the tensor ranks as the dense layers are, or not at all."""
    experts_need_sequence_parallel: bool
    """Mixtures of experts run with tensor parallelism only where there is sequence parallelism."""
    replicated_shards: bool
    """data_parallel_replicate_size > 1 (HSDP, MiCS, several optimizer instances)."""
    replicate_zero_stages: tuple[int, ...]
    """ZeRO stages with which it runs."""
    secondary_shards: bool
    """secondary_shard_size > 1 (hpZ)."""
    uneven_layers: bool
    """Stages may hold different numbers of layers."""
    interleaving_needs_whole_rounds: bool
    """Under interleaving the micro-batches split evenly into floor(micro-batches / stages) rounds."""
    activation_checkpointing: tuple[str, ...]
    checkpoints_in_part: bool
    """Full checkpointing of some layers of a stage and not of others."""
    recompute_modules: tuple[str, ...]
    offloads: tuple[str, ...]
    """Besides `none`."""
    offload_zero_stages: Mapping[str, tuple[int, ...]]
    """ZeRO stages with which each kind of offload runs."""
    partial_offload_zero_stages: Mapping[str, tuple[int, ...]]
    """ZeRO stages with which a part of the optimizer (offload_fraction below 1) can be offloaded, by kind."""
    offloads_activations_alone: bool
    """Activations leave the GPU only without a pipeline and without recomputation."""
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    fine_tuning: tuple[str, ...]
    launch_targets: tuple[str, ...]
    vocabulary_multiple: int
    """The vocabulary is padded to a multiple of this times the tensor size."""

    zero_stage: int
    zero_stage_with_pipeline: int
    sequence_parallel_with_tensor: bool
    expert_tensor_follows_tensor: bool
    embedding_and_loss_count_as_layers: bool
    """Default layout where the layers do not divide: the two ends counted as a layer each."""
    splits_layers_by_cost: bool
    """Layers go to stages by the running sum of their costs, and no setting says otherwise: its only layout."""
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

    memory_error: float
    """Standard deviation of log(measured / predicted) of a peak: root mean square over its published runs, the median
    of their sources (benchmarks.validate), rounded up."""

    reduces_every_micro_batch: tuple[int, ...]
    """ZeRO stages at which gradients are reduced after every micro-batch (with a pipeline only after the last)."""
    reduces_after_backward: tuple[int, ...]
    """ZeRO stages at which gradients are all-reduced in one message after the last backward, under nothing."""
    hides_parameter_gather: bool
    """ZeRO-1: updated parameters are gathered under the next forward, bucket by bucket; False: at the step's end."""
    fused_gradient_accumulation: bool
    """The weight gradient's kernel adds to the accumulated gradient itself."""
    merged_projections: bool
    """One matrix makes queries, keys and values, another gate and up, and LoRA puts one adapter beside each."""
    casts_weights: bool
    """16-bit copies of fp32 weights are made on use (autocast); False: stored so, or cast in the shard."""

    keeps_fp32_masters: bool
    """The optimizer steps fp32 copies of weights that are stored in 16 bit."""
    requantised_zero_stages: tuple[int, ...]
    """ZeRO stages whose optimizer writes its fp32 masters into 8-bit weights (parameter_dtype fp8)."""
    copies_gradients_to_fp32: bool
    """16-bit gradients are copied to fp32 for the optimizer's step."""
    persistent_gradients: tuple[int, ...]
    """ZeRO stages at which gradients live in buffers that are there from the first step on; else they come with
    backward and go with it."""
    stage_2_shards_weights: bool
    """ZeRO-2 keeps weights sharded too and gathers them all once a step (not resharded after forward)."""
    pipeline_keeps_whole_gradients: bool
    """With a pipeline gradients are reduced, and sharded, only after the last micro-batch."""
    autocast_weight_copies: bool
    """fp32 weights have a 16-bit copy from forward to the end of backward (torch.autocast's weight cache)."""
    flat_optimizer: bool
    """The optimizer steps flattened weights, which have no rows and columns."""
    muon_by_tensor: bool
    """With Muon ranks share the states tensor by tensor, embedding and head too, and cut none."""
    foreach_optimizer: bool
    """The optimizer's step makes a temporary as large as the trained weights (torch foreach Adam)."""
    regathers_sequence_parallel_inputs: bool
    """Sequence parallelism keeps the shard of a norm's output and gathers it again in backward (arXiv 2205.05198,
    section 4.2.2); else the gathered output is kept."""
    gather_buffers: int
    """Buffers for whole activations that sequence parallelism gathers into and that stay."""
    keeps_receive_buffers: bool
    """Stages have a buffer of every micro-batch for what they receive, and keep them."""
    keeps_pipeline_outputs: bool
    """Outputs sent to the next stage stay until their backward."""
    weight_gradient_placeholders: bool
    """A 16-bit placeholder of each matrix shape stays allocated (Transformer Engine's get_dummy_wgrad)."""
    fp8_weight_copies: int
    """8-bit copies of each matrix kept beside the stored weight under precision fp8."""
    nvfp4_bf16_tail: float
    """Share of the layers, the last ones, that its NVFP4 recipe leaves in bf16."""
    fp8_saved_inputs: bool
    """Inputs of linear layers are saved in 8 bit under precision fp8."""
    gathered_blocks: float
    """Blocks gathered at once under ZeRO-3: the one in use and those prefetched."""
    reduction_dtype_bytes: float
    """Bytes of an element of a gradient bucket on its way to be reduced."""
    reduces_on_own_stream: bool
    """Sharded gradients come out of the pool of a stream of their own, which the allocator lends to no other."""
    reduction_blocks: float
    """Blocks whose gradients wait in reduce-scatter buffers at once, under ZeRO-2 and 3."""
    bucket_elements: float
    """Elements of a reduction bucket beside the gradients, where the framework has fixed-size ones (ZeRO-1 and up)."""
    live_parameter_elements: float
    """Elements of gathered weights that may stay alive under ZeRO-3 (DeepSpeed's stage3_max_live_parameters)."""
    embedding_stays_gathered: bool
    """Under ZeRO-3 the embedding stays gathered with the group around the blocks (the root of fsdp1)."""
    loss_fp32_copies: int
    """fp32 tensors of the logits' shape that are alive at once while the loss is differentiated."""
    loss_logit_copies: int
    """Tensors of the logits' shape in the compute dtype that are alive beside them."""
    gradients_beside_buckets: bool
    """Reduction buckets are copies of the gradients, unless gradient_as_bucket_view."""
    gathers_every_micro_batch: tuple[int, ...]
    """ZeRO stages at which sharded weights are gathered, layer by layer, for every micro-batch."""
    reduces_in_16_bit: bool
    """Gradients travel in the compute precision, whatever they are accumulated in."""
    flattens_weights: bool
    """Setting up ZeRO-1 or 2 copies the weights into flat buffers beside the originals."""
    gated_product_fused: bool
    """`fused` kernels include the product of a gated activation; else its factors are kept too."""
    attention_output_copied: bool
    """The output projection reads a copy of what the attention kernel wrote."""
    checkpoint_stops_early: bool
    """Recomputation ends once all saved tensors are there (torch.utils.checkpoint without re-entrance)."""
    newest_attention: bool
    """Its attention kernels are written for each generation (cuDNN, FlashAttention-3); else FlashAttention-2."""
    bucket_bytes_per_gradient: float
    """Bytes of a gradient beside the fp32 one it is added to after backward, where there is data parallelism; counted
    for the whole step as buckets that stay."""
    compiles_loss: bool
    """`compile` covers the loss."""
    embeddings_step_in_fp32: bool
    """8-bit Adam keeps fp32 moments of embeddings."""
    adapters_in_fp32: bool
    """Adapters beside 16- or 4-bit weights are fp32, and so are their gradients and states."""
    fused_loss_in_place: bool
    """The fused loss keeps the logits and writes their gradient over them; else it takes them in chunks."""
    states_follow_weights: bool
    """Gradients and states of 16-bit weights are 16-bit too: PyTorch's autograd and optimizers, without masters."""
    step_elements: float
    """Most weights that one step of the optimizer takes at once under ZeRO-3 (DeepSpeed's sub_group_size); 0: all."""
    offloads_gradients: bool
    """Sharded gradients move to the host with the offloaded states as they are made (ZeRO-Offload)."""
    splits_pipeline_traffic: bool
    """Tensor ranks send a part of the activations each and gather them again (arXiv 2104.04473 section 4.1)."""
    shards_whole_experts: bool
    """Stacked experts are sharded over experts while there are enough of them, so that some ranks hold one more."""
    shards_quantisation_constants: bool
    """Constants of NF4 weights are sharded with them (torchao's NF4Tensor); else they hang on the weight as plain
    tensors, which no sharding knows (bitsandbytes' quant_state)."""
    frozen_weights_have_gradients: bool
    """A flat parameter that mixes frozen weights with adapters has a gradient of its full length, kept whole while
    micro-batches are accumulated without synchronisation (torch FSDP notes on freezing, and on no_sync)."""

    def offloads_in_part(self, offload: str, zero_stage: int) -> bool:
        """Whether offload_fraction may be below 1: of activations always, since it counts layers."""
        return offload == "activations" or zero_stage in self.partial_offload_zero_stages.get(offload, ())
