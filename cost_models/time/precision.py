"""Extra passes of low-precision training: amax and casts around each matrix product."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.quantisation import NVFP4_BYTES, fp4_share
from cost_models.strategy import FP8_RECIPES, FloatColumn, StrategyTable
from cost_models.time.cases import LayerCases

CAST_BYTES: Final = {None: 0.0, "tensorwise": 6.0, "rowwise": 6.0, "blockwise": 4.0, "mxfp8": 4.0}
"""Bytes per cast element: read 2, write 1 in each of two layouts; current scaling reads once more for the amax
(Transformer Engine recipes: Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling)."""
NVFP4_CAST_BYTES: Final = 2 * 2 + 2 * NVFP4_BYTES
"""Read for the largest value of the tensor, read again, and written in two layouts, one of them after the Hadamard
transform (Transformer Engine's NVFP4BlockScaling; arXiv 2509.25149, section 4)."""
ALTERNATE_PRODUCTS: Final = 0.5
"""torchtitan's per-op policy saves every second matrix product and recomputes the others."""
FUSED_CAST: Final = 0.5
"""torch.compile fuses the cast into the kernel before it: it writes, but reads nothing more."""


def recomputed_products(table: StrategyTable) -> FloatColumn:
    """Share of the products that torchtitan's per-op policy computes again: every second one; all in NVFP4, whose
    operators (torchao's own) it does not know."""
    share = fp4_share(table)
    repeated: FloatColumn = share + (1.0 - share) * ALTERNATE_PRODUCTS
    return repeated


def cast_bytes(cases: LayerCases, elements: FloatColumn) -> FloatColumn:
    """Of one pass, which casts one of input and output gradient: half of all elements."""
    low = cases.table.is_choice("precision", "fp8", "nvfp4")
    by_recipe = np.array([CAST_BYTES[recipe] for recipe in FP8_RECIPES])[cases.table.fp8_recipe]
    per_element = np.where(cases.table.is_choice("precision", "nvfp4"), NVFP4_CAST_BYTES, by_recipe)
    scale = np.where(cases.compiled, FUSED_CAST, 1.0)
    share = np.where(cases.table.is_choice("precision", "nvfp4"), fp4_share(cases.table), 1.0)
    cast: FloatColumn = np.where(low, 0.5 * elements * per_element * scale * share, 0.0)
    return cast
