"""Seconds of single operators by shape: matrix multiplications and attention kernels.

Sources: NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation); FlashAttention-2 (arXiv
2307.08691) section 3 and 4 (work of causal kernels, 2.5 times the forward work in backward); roofline for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.strategy import FloatColumn
from cost_models.time.device import Device

TILES: Final = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.95), (128.0, 64.0, 0.80))
"""Output tiles of cuBLAS kernels with their efficiency against the largest: a smaller tile loads each operand more
often per product. Guide above, section 4.2: 256x128 reaches the most, 64-wide tiles clearly less."""
SPLIT_DEPTH: Final = 4096.0
"""K that one thread block sums at least; kernels split longer sums over several (split-K and stream-K, arXiv 2301.03598
section 3), which softens wave quantisation. The depth is assumed: NVIDIA publishes no heuristics of cuBLAS."""
LARGEST_SPLIT: Final = 4.0
"""Assumed as well: partial sums cost memory traffic that grows with it."""
ALIGNED: Final = ((8, 1.0), (2, 0.6), (1, 0.35))
"""Share of the rate of large products where rows are a multiple of so many 16-bit elements, so that they begin at 16, 4
or 2 bytes (guide above, section 2.2): of the head in vTrain's runs, arXiv 2312.12391, whose 50257 rows over 1, 2, 4 and
8 ranks are not padded. Queries by keys with heads of such sizes reach 0.93, 0.6 and 0.39 of what multiples of 64 do
(A100, 140 and 90 of 230 TFLOP/s; arXiv 2401.14489, appendix, attention key query score of 16 to 24 heads)."""
ATTENTION_TILE: Final = 128.0
"""Queries that one thread block of a flash kernel holds (FlashAttention-2, section 3.3)."""
USUAL_HEAD_DIM: Final = 128.0
BACKWARD_WORK: Final = 2.5
"""Five products against two (FlashAttention-2, section 4.1)."""


@dataclass(frozen=True)
class Gemm:
    """`batch` products (m, k) x (k, n); arrays that broadcast. Where n or m is 0 there is no product."""

    m: FloatColumn
    n: FloatColumn
    k: FloatColumn
    batch: FloatColumn


def gemm_seconds(gemm: Gemm, flops_per_s: FloatColumn, element_bytes: FloatColumn, device: Device) -> FloatColumn:
    """The faster tile's time at the rate of large products, or that of moving the operands where it is longer."""
    multiprocessors = float(device.gpu.multiprocessors)
    split = np.clip(np.floor(gemm.k / SPLIT_DEPTH), 1.0, LARGEST_SPLIT)
    best = np.inf
    for rows, columns, efficiency in TILES:
        tiles = gemm.batch * np.ceil(gemm.m / rows) * np.ceil(gemm.n / columns)
        waves = np.ceil(tiles * split / multiprocessors) / split
        best = np.minimum(best, waves * (rows * columns / efficiency))
    executed = 2 * multiprocessors * best * (gemm.k + device.kernels.gemm_depth)
    compute = executed / flops_per_s
    moved = gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) * element_bytes
    seconds: FloatColumn = np.where(gemm.m * gemm.n > 0, np.maximum(compute, device.memory_seconds(moved)), 0.0)
    return seconds


def aligned_share(elements: FloatColumn) -> FloatColumn:
    """Of the rate, by the elements of a row."""
    share: FloatColumn = np.select([elements % multiple == 0 for multiple, _ in ALIGNED], [s for _, s in ALIGNED])
    return share


@dataclass(frozen=True)
class AttentionShape:
    """Scaled dot-product attention of one rank."""

    batch_heads: FloatColumn
    queries: FloatColumn
    """Of one sequence on this rank."""
    span: FloatColumn
    """Keys a query meets on average, masked ones not counted."""
    keys: FloatColumn
    """Keys in all, masked ones too."""
    head_dim: float
    value_head_dim: float

    @property
    def visible_flops(self) -> FloatColumn:
        """Forward FLOP without the masked part."""
        return 2 * self.batch_heads * self.queries * self.span * (self.head_dim + self.value_head_dim)


def visible_span(keys: FloatColumn, *, causal: bool, window: int | None) -> FloatColumn:
    """Keys that a query sees on average: half of all under a causal mask, at most the window."""
    reach = keys if window is None else np.minimum(keys, float(window))
    if not causal:
        return reach
    # The first `reach` queries see a triangle, the others the whole window.
    span: FloatColumn = reach * (1 - reach / (2 * keys))
    return span


def flash_seconds(
    shape: AttentionShape, peak_flops_per_s: FloatColumn, device: Device
) -> tuple[FloatColumn, FloatColumn]:
    """(forward, backward): kernels skip masked tiles; small heads, short rows and few blocks reach less of the peak."""
    kernels = device.kernels
    mean_dim = (shape.head_dim + shape.value_head_dim) / 2
    head = mean_dim / (mean_dim + kernels.head_dim_depth) * (1 + kernels.head_dim_depth / USUAL_HEAD_DIM)
    row = shape.span / (shape.span + kernels.attention_depth)
    blocks = shape.batch_heads * np.ceil(shape.queries / ATTENTION_TILE)
    occupancy = blocks / (np.ceil(blocks / device.gpu.multiprocessors) * device.gpu.multiprocessors)
    ideal = shape.visible_flops / (peak_flops_per_s * min(head, 1.0) * row * occupancy)
    forward = ideal / device.generation.flash_forward
    return forward, BACKWARD_WORK * forward / kernels.flash_backward


def eager_products(shape: AttentionShape) -> tuple[Gemm, Gemm]:
    """QKᵀ and PV as batched products over every key, masked or not."""
    width = np.broadcast_to(np.float64(shape.head_dim), shape.queries.shape)
    values = np.broadcast_to(np.float64(shape.value_head_dim), shape.queries.shape)
    return (
        Gemm(shape.queries, shape.keys, width, shape.batch_heads),
        Gemm(shape.queries, values, shape.keys, shape.batch_heads),
    )
