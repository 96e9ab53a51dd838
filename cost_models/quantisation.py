"""Weights and inputs in 4 bit: which are stored so, and in how many bytes.

QLoRA's frozen weights are in NF4 (arXiv 2305.14314, section 3): bitsandbytes replaces the linear layers of the blocks;
embedding, norms, biases, head and adapters stay in 16 bit. NVFP4 (arXiv 2509.25149, section 2) is a precision of
products: every linear layer of the blocks takes it but for a tail of layers that the framework's recipe leaves in bf16,
which is priced as a share of every layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import Block, Linear
from cost_models.frameworks import FRAMEWORKS
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable

PACKING: Final = 1 / 4
"""Elements of 16-bit storage that hold one 4-bit weight (bitsandbytes' quant_storage)."""
CONSTANT_BYTES: Final = 1 / 64 + 4 / (64 * 256)
"""Of a weight: an 8-bit constant a block of 64, a fp32 one for 256 of those (double quantisation)."""
CODE_BYTES: Final = 0.5
"""Of a weight, without its constants."""
DEQUANTISED_BYTES: Final = 2.0
"""A weight on its way into a product: bitsandbytes multiplies in 16 bit (arXiv 2305.14314, equation 5). The product
keeps the packed weight for backward, not its input (bitsandbytes since 0.43.2, pull request 1270). Memory bounds the
conversion on every GPU since pull request 1746 of September 2025; A100 and H100 took 1.4 to 2.1 times that before."""
NVFP4_BYTES: Final = 0.5 + 1 / 16
"""An 8-bit scale for 16 elements; the fp32 one of a tensor is nothing."""
DEQUANTISATION_OPERATORS: Final = 3.0
"""A product's own besides the product: constants dequantised, their mean added, weights dequantised
(bitsandbytes.functional.dequantize_4bit with a nested state)."""


def fp4_share(table: StrategyTable) -> FloatColumn:
    """Share of the layers whose products are in NVFP4, (n,)."""
    tails = np.array([framework.nvfp4_bf16_tail for framework in FRAMEWORKS])[table.framework]
    return np.where(table.is_choice("precision", "nvfp4"), 1.0 - tails, 0.0)


def is_quantised(problem: Problem) -> bool:
    """Whether the frozen matrices are in NF4."""
    tuning = problem.workload.fine_tuning
    return tuning is not None and tuning.method == "qlora"


def quantised_weights(block: Block) -> int:
    """Weights of a block that are stored in NF4."""
    return sum(_elements(linear) * linear.copies for linear in block.linears)


def mean_weight_bytes(problem: Problem) -> float:
    """Of a weight on its way between ranks: what is sharded is sent as it is stored."""
    model = problem.model
    packed = sum(quantised_weights(model.blocks[kind]) for kind in model.layer_blocks)
    return 2.0 * (1.0 - (1.0 - PACKING) * packed / model.parameters)


def largest_matrix(block: Block) -> int:
    """Weights of the block's largest matrix: products take one at a time."""
    return max(_elements(linear) for linear in block.linears)


def _elements(linear: Linear) -> int:
    return linear.in_features * linear.out_features
