"""Warnings that follow from sizes, links and the model alone; no cost is computed for them."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.expert_routing import domains_reached
from cost_models.layouts import busiest_stages, head_cost_in_layers
from cost_models.rules.view import Rule, View
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, dtype_bytes
from cost_models.vocabulary import padded_vocabulary

SLOW_LINK_BYTES_PER_S: Final = 6.25e9
"""50 Gb/s a GPU: what a DGX-1V had (four 100 Gb/s cards for eight GPUs); training clusters since have more."""
FLASH_HEAD_DIMS: Final = (32, 64, 96, 128, 192, 256)
"""Head dimensions that flash-attn compiles kernels for; others run padded to the next."""
TENSOR_CORE_MULTIPLE: Final = 8
"""Elements in 16 bytes, in whose multiples tensor cores are used fully (NVIDIA, Matrix Multiplication Guide)."""
WEIGHTS_SHARE: Final = 1 / 4
"""Of the GPU's memory: replicated weights above it are worth sharding, whatever else is kept."""
MICRO_BATCHES_PER_STAGE: Final = 4
"""The bubble is small from four micro-batches a stage (GPipe, arXiv 1811.06965, section 2.3)."""
ZERO_BUBBLE_MICRO_BATCHES_PER_STAGE: Final = 2
"""Zero-bubble schedules want at least two micro-batches a stage (arXiv 2401.10241, section 4)."""
STAGE_IMBALANCE: Final = 1.2
"""Busiest stage over the mean: the mean stage idles for more than a sixth of the step."""
FP8_TOO_NARROW: Final = 1024
"""A linear layer with a side this narrow stays in bf16 under torchao's auto-filter, which measured no gain on H100."""
FP8_MULTIPLE: Final = 16
"""Sides of an fp8 matrix multiplication are multiples of 16 elements (cuBLASLt); other layers stay in 16 bit."""
FLAT_NODES: Final = 16
"""Hosts that one flat reduction spans; the bus bandwidth of all-reduce falls steadily with nodes (Ultra-Scale Playbook,
measured on 1 to 64 nodes), which a replicate group (HSDP, several optimizer instances) splits in two levels."""


def _domain(view: View) -> int:
    """GPUs that reach each other without the network: an NVLink domain, or a host where that is larger."""
    return max(view.cluster.nvlink_domain_gpus, view.cluster.gpus_per_node)


def _link_domain(view: View) -> int:
    """GPUs joined by the fastest link: an NVLink domain, also where it is a part of a host; a host of PCIe cards."""
    domain = view.cluster.nvlink_domain_gpus
    return domain if domain > 1 else view.cluster.gpus_per_node


def _crosses(domain: int, span: IntColumn) -> BoolColumn:
    """Where groups of `span` consecutive ranks do not all lie inside one domain."""
    return (domain % np.minimum(span, domain) > 0) | (span > domain)


def _tensor_crosses(view: View) -> BoolColumn:
    return (view.tensor > 1) & _crosses(_domain(view), view.tensor)


def _tensor_crosses_says(view: View) -> str:
    return (
        f"groups of tensor_parallel_size {view.tensor[0]} reach beyond the {_domain(view)} GPUs that share a fast "
        "link: every layer waits for the network"
    )


def _expert_span(view: View) -> IntColumn:
    return view.expert * view.expert_tensor


def _expert_crosses(view: View) -> BoolColumn:
    return (view.expert > 1) & _crosses(_link_domain(view), _expert_span(view))


def _expert_crosses_says(view: View) -> str:
    return (
        f"expert_parallel_size {view.expert[0]} x expert_tensor_parallel_size {view.expert_tensor[0]} reaches beyond "
        f"the {_link_domain(view)} GPUs that share a fast link: tokens travel to experts over a slower one, "
        f"{_copies_say(view)}"
    )


def _copies_say(view: View) -> str:
    """Copies of a token that leave its domain."""
    mixture = next(block.experts for block in view.model.blocks if block.experts)
    domains = -(-int(_expert_span(view)[0]) // _link_domain(view))
    elsewhere = 1 - 1 / domains
    each = f"{mixture.experts_per_token * elsewhere:.1f} copies of each in an all-to-all"
    once = f"{domains_reached(mixture, domains) * elsewhere:.1f} copies of each, one to a domain (DeepEP, HybridEP)"
    once_is_priced = view.cluster.inter_node.expert_dispatch == "hierarchical" and view.framework.hierarchical_dispatch
    return f"{once}, which is priced; {each}" if once_is_priced else f"{each}, which is priced; {once}"


def _network_bytes_per_s(view: View) -> float:
    return view.cluster.inter_node.bytes_per_s / view.cluster.inter_node.oversubscription


def _slow_link(view: View) -> bool:
    return view.cluster.gpus > _domain(view) and _network_bytes_per_s(view) < SLOW_LINK_BYTES_PER_S


def _slow_link_says(view: View) -> str:
    return (
        f"the network gives a GPU {_network_bytes_per_s(view) * 8e-9:.0f} Gb/s; clusters for training have at least "
        f"{SLOW_LINK_BYTES_PER_S * 8e-9:.0f}"
    )


def _no_peer_to_peer(view: View) -> bool:
    return view.cluster.gpus_per_node > 1 and not view.cluster.intra_node.peer_to_peer


def _no_peer_to_peer_says(view: View) -> str:
    shared = view.cluster.host_path_gpus
    by = f", {shared} cards by one path" if shared > 1 else ""
    return f"{view.cluster.gpu.name} has no peer-to-peer access: traffic inside a node goes through host memory{by}"


def _odd_head(view: View) -> bool:
    if view.workload.attention == "flash":
        return any(dim not in FLASH_HEAD_DIMS for dim in view.dimensions.head_dims)
    return any(dim % TENSOR_CORE_MULTIPLE for dim in view.dimensions.head_dims)


def _odd_head_says(view: View) -> str:
    if view.workload.attention == "flash":
        dim = next(dim for dim in view.dimensions.head_dims if dim not in FLASH_HEAD_DIMS)
        padded = next(kernel for kernel in FLASH_HEAD_DIMS if kernel > dim)
        return f"head_dim {dim} has no flash attention kernel of its own and runs padded to {padded}"
    dim = next(dim for dim in view.dimensions.head_dims if dim % TENSOR_CORE_MULTIPLE)
    return f"head_dim {dim} is no multiple of {TENSOR_CORE_MULTIPLE}: attention does not fill the tensor cores"


def _rank_widths(view: View) -> list[IntColumn]:
    """Sides of the large matrices on one rank: the hidden size and the shares of feed-forward widths."""
    return [
        np.full(len(view.table), view.model.hidden_size, dtype=np.int64),
        *(width // view.tensor for width in view.dimensions.ffn_widths),
        *(width // view.expert_tensor for width in view.dimensions.expert_widths),
    ]


def _fp8_gain(view: View) -> float:
    peaks = view.cluster.gpu.peak_flops_per_s
    return peaks.get("fp8", 0.0) / peaks.get("bf16", np.inf)


def _fp8(view: View) -> BoolColumn:
    widths = np.stack(_rank_widths(view))
    unfit = (widths <= FP8_TOO_NARROW).any(axis=0) | (widths % FP8_MULTIPLE > 0).any(axis=0)
    return view.table.is_choice("precision", "fp8") & (unfit | (_fp8_gain(view) <= 1))


def _fp8_says(view: View) -> str:
    if _fp8_gain(view) <= 1:
        return f"{view.cluster.gpu.name} multiplies no faster in fp8 than in bf16"
    narrowest = min(int(width[0]) for width in _rank_widths(view))
    if narrowest <= FP8_TOO_NARROW:
        return f"matrices {narrowest} wide on a rank are too narrow for fp8: casts and scales eat the gain"
    odd = next(int(width[0]) for width in _rank_widths(view) if width[0] % FP8_MULTIPLE)
    return f"matrices {odd} wide on a rank are no multiple of {FP8_MULTIPLE}: those layers do not run in fp8"


def _weight_bytes(view: View) -> FloatColumn:
    """Weights on one rank, experts spread over their own ranks."""
    routed = sum(
        part.experts.routed.parameters
        for kind in view.model.layer_blocks
        if (part := view.model.blocks[kind]).experts is not None
    )
    dense = (view.model.parameters - routed) / view.tensor
    experts = routed / (view.expert * view.expert_tensor)
    return dtype_bytes(view.table.parameter_dtype) * (dense + experts) / view.pipeline


def _replicated(view: View) -> BoolColumn:
    share = _weight_bytes(view) / view.cluster.capacity_bytes
    return (view.table.zero_stage < 3) & (view.data > 1) & (share > WEIGHTS_SHARE)


def _replicated_says(view: View) -> str:
    size = _weight_bytes(view)[0]
    return (
        f"each of {view.data[0]} data-parallel ranks keeps all its weights ({size / 2**30:.1f} GiB, "
        f"{size / view.cluster.capacity_bytes:.0%} of the GPU): zero_stage 3 would shard them"
    )


def _padded(view: View) -> BoolColumn:
    broken: BoolColumn = padded_vocabulary(view.model, view.table) != view.model.vocab_size
    return broken


def _padded_says(view: View) -> str:
    multiple = view.framework.vocabulary_multiple * int(view.tensor[0])
    padded = padded_vocabulary(view.model, view.table)[0]
    return f"vocabulary {view.model.vocab_size} is padded to {padded}, a multiple of {multiple}"


def _wanted(view: View) -> IntColumn:
    zero_bubble = view.table.is_choice("pipeline_schedule", "zero-bubble")
    return view.pipeline * np.where(zero_bubble, ZERO_BUBBLE_MICRO_BATCHES_PER_STAGE, MICRO_BATCHES_PER_STAGE)


def _few(view: View) -> BoolColumn:
    # Interleaving divides the bubble by the chunks of a stage (arXiv 2104.04473, section 2.2).
    return (view.pipeline > 1) & (view.micro_batches * view.virtual < _wanted(view))


def _few_says(view: View) -> str:
    virtual = int(view.virtual[0])
    chunks = f" x {virtual} chunks" if virtual > 1 else ""
    return (
        f"{view.micro_batches[0]} micro-batches{chunks} for {view.pipeline[0]} stages leave a large bubble; "
        f"{_wanted(view)[0]} would keep it small"
    )


def _stage_excess(view: View) -> FloatColumn:
    """Busiest stage over the mean, in layers, the head counted."""
    head = head_cost_in_layers(view.model)
    busiest = busiest_stages(view.table.layouts, view.table.layers_per_stage, view.pipeline, head)
    return busiest * view.pipeline / (view.model.layers + head)


def _imbalanced_stages(view: View) -> BoolColumn:
    return _stage_excess(view) > STAGE_IMBALANCE


def _imbalanced_stages_say(view: View) -> str:
    return (
        f"the busiest stage has {_stage_excess(view)[0] - 1:.0%} more to do than the mean (the head counts as "
        f"{head_cost_in_layers(view.model):.1f} layers)"
    )


def _reducing_nodes(view: View) -> IntColumn:
    """Hosts over which one flat gradient reduction is spread."""
    ranks = view.tensor * view.context * view.data // view.replicate
    return -(-ranks // view.cluster.gpus_per_node)


def _flat(view: View) -> BoolColumn:
    able = view.allows("zero_stage", lambda framework: framework.replicate_zero_stages)
    broken: BoolColumn = able & (view.data > 1) & (view.replicate == 1) & (_reducing_nodes(view) > FLAT_NODES)
    return broken


def _flat_says(view: View) -> str:
    return (
        f"gradients are reduced in one step over {_reducing_nodes(view)[0]} nodes: data_parallel_replicate_size > 1 "
        "would reduce them inside groups of nodes first"
    )


PLACEMENT: Final = (
    Rule("tensor_parallel_crosses_nodes", _tensor_crosses, _tensor_crosses_says),
    Rule("expert_parallel_crosses_domain", _expert_crosses, _expert_crosses_says),
    Rule("slow_link", _slow_link, _slow_link_says),
    Rule("peer_to_peer_missing", _no_peer_to_peer, _no_peer_to_peer_says),
    Rule("odd_head_dimension", _odd_head, _odd_head_says),
    Rule("fp8_without_gain", _fp8, _fp8_says),
    Rule("weights_replicated", _replicated, _replicated_says),
    Rule("vocabulary_padded", _padded, _padded_says),
    Rule("few_micro_batches", _few, _few_says),
    Rule("stages_imbalanced", _imbalanced_stages, _imbalanced_stages_say),
    Rule("flat_all_reduce_across_nodes", _flat, _flat_says),
)
