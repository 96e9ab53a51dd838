"""Extra passes of low-precision training: amax and casts around each matrix product."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.strategy import FP8_RECIPES, FloatColumn
from cost_models.time.cases import LayerCases

CAST_BYTES: Final = {None: 0.0, "tensorwise": 6.0, "rowwise": 6.0, "blockwise": 4.0, "mxfp8": 4.0}
"""Bytes per cast element: read 2, write 1 in each of two layouts; current scaling reads once more for the amax
(Transformer Engine recipes: Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling)."""
FUSED_CAST: Final = 0.5
"""torch.compile fuses the cast into the kernel before it: it writes, but reads nothing more."""


def cast_bytes(cases: LayerCases, elements: FloatColumn) -> FloatColumn:
    """Of one pass, which casts one of input and output gradient: half of all elements."""
    low = cases.table.is_choice("precision", "fp8", "nvfp4")
    per_element = np.array([CAST_BYTES[recipe] for recipe in FP8_RECIPES])[cases.table.fp8_recipe]
    scale = np.where(cases.compiled, FUSED_CAST, 1.0)
    cast: FloatColumn = np.where(low, 0.5 * elements * per_element * scale, 0.0)
    return cast
