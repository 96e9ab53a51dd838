"""CPU work of routed experts: small experts leave the GPU waiting for the host that routes, sorts and launches.

Counted in Megatron-Core 0.14 (megatron/core/transformer/moe: router.py, moe_utils.py, token_dispatcher.py, experts.py)
and Transformer Engine 2 (pytorch/module/grouped_linear.py) for routing without dropped tokens.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import Block, MixtureOfExperts
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases

ROUTING_OPERATORS: Final = 27.0
"""Before the tokens move: softmax, top-k, probabilities and map scattered, balancing loss (TopKRouter.routing and
topk_softmax_with_capacity: 16), and how many tokens go where (preprocess of MoEAlltoAllTokenDispatcher: 11)."""
DISPATCH_OPERATORS: Final = 20.0
"""Then: those counts copied to the host and waited for (6), tokens permuted (3), sorted by expert and back (5), padded
and cut again, weighted (4), restored (2)."""
LAUNCH_SECONDS: Final = 4e-6
"""Of a kernel from C++, without an operator around it: where benchmarks/fit_ranges.py lets an operator begin."""
EXPERT_SECONDS: Final = 9e-6
"""CPU time of each expert's share of a grouped product beside its kernels: quantizers set up, weights and gradients
looked up, buffers made. Two products over 64 tiny experts take 1.2 ms forward and 2.1 backward where one kernel does
them all, 0.2 of it in launches and views (GB200; NVIDIA/TransformerEngine issue 2897)."""
EXPERT_KERNELS: Final = (1.0, 4.0)
"""Of each expert's share of a grouped product, in 16 bit and in 8: the product; input quantised (largest value, scale
and cast, or cast and both layouts of the scales). Quantised weights are kept from the first micro-batch on."""


def uncaptured_operators(block: Block) -> float:
    """Of a forward, what no CUDA graph holds: from where the host must know how many tokens each expert has
    (Megatron-Core's scopes of graphs, --cuda-graph-scope moe_router and moe_preprocess, end there)."""
    return DISPATCH_OPERATORS if isinstance(block.feed_forward, MixtureOfExperts) else 0.0


def launch_seconds(block: Block, products: FloatColumn, cases: LayerCases) -> FloatColumn:
    """CPU time of one forward's `products`, which Transformer Engine launches expert by expert; torch's grouped product
    is one kernel."""
    if not isinstance(block.feed_forward, MixtureOfExperts):
        return np.zeros(len(cases))
    local = block.feed_forward.experts / cases.expert
    kernels = np.where(cases.table.is_choice("precision", "fp8", "nvfp4"), EXPERT_KERNELS[1], EXPERT_KERNELS[0])
    seconds: FloatColumn = np.where(cases.fused, products * local * (kernels * LAUNCH_SECONDS + EXPERT_SECONDS), 0.0)
    return seconds
