"""The matrix multiplications of a block: their shapes on one rank, and their seconds forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import Block, FeedForward, Linear, MixtureOfExperts
from cost_models.quantisation import fp4_share
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.device import Device
from cost_models.time.operators import Gemm, gemm_seconds

MERGED: Final = (("q", "k", "v"), ("gate", "up"))
"""Layers that fused kernels multiply as one (Megatron's linear_qkv and linear_fc1)."""
UP_PROJECTIONS: Final = frozenset({"q", "q_up", "kv_up"})
"""Of latent attention, what makes queries, keys and values again under `mla_up_proj`: also a query projection without a
latent (Megatron-Core's multi_latent_attention.py, qkv_up_proj_and_rope_apply)."""


@dataclass(frozen=True)
class LinearSeconds:
    """One group of linear layers; columns (u,)."""

    forward: FloatColumn
    last_forward: FloatColumn
    """Of `forward`, the last product."""
    input_gradient: FloatColumn
    weight_gradient: FloatColumn
    weights: FloatColumn
    """Weights on one rank."""
    trained_weights: FloatColumn
    """Those with a gradient: none under LoRA."""
    operators: FloatColumn
    """Kernels of one forward."""
    cast_elements: FloatColumn
    """Inputs and outputs that low-precision training casts, forward."""


def dense_linears(linears: Sequence[Linear], cases: LayerCases, device: Device, *, trained: bool) -> LinearSeconds:
    """Linear layers that every token of a rank goes through."""
    return _seconds([_dense_shape(linear, cases) for linear in linears], linears, cases, device, trained=trained)


def routed_linears(
    mixture: MixtureOfExperts, imbalance: float, cases: LayerCases, device: Device, *, trained: bool
) -> LinearSeconds:
    """Routed experts on the rank with the hottest of them, as grouped products."""
    local = mixture.experts / cases.expert
    rows = routed_rows(mixture, imbalance, cases)
    shapes = []
    for linear in mixture.routed.linears:
        width = linear.out_features / (cases.expert_tensor if linear.split == "column" else 1.0)
        depth = linear.in_features / (cases.expert_tensor if linear.split == "row" else 1.0)
        shapes.append(_stack(rows, width, depth, local))
    return _seconds(shapes, mixture.routed.linears, cases, device, trained=trained)


def routed_tokens(mixture: MixtureOfExperts, cases: LayerCases) -> FloatColumn:
    """(token, expert) pairs that one rank sends; each tensor rank sends its share of the tokens."""
    return cases.tokens / cases.tensor * mixture.experts_per_token


def routed_rows(mixture: MixtureOfExperts, imbalance: float, cases: LayerCases) -> FloatColumn:
    """Tokens of one expert on the rank with the hottest of them."""
    rows: FloatColumn = routed_tokens(mixture, cases) * cases.expert_tensor * cases.expert / mixture.experts * imbalance
    return rows


def dense_feed_forward(part: FeedForward | MixtureOfExperts) -> tuple[Linear, ...]:
    """Linear layers of the feed-forward part that follow the dense layout: all, or router and shared experts."""
    if isinstance(part, FeedForward):
        return part.linears
    gate = (part.shared_gate,) if part.shared_gate else ()
    return (part.router, *(part.shared.linears if part.shared else ()), *gate)


def up_projections(block: Block) -> list[Linear]:
    """What `mla_up_proj` computes again; nothing of other than latent attention."""
    if block.attention.latent is None:
        return []
    return [linear for linear in block.attention_linears if linear.name in UP_PROJECTIONS]


def _dense_shape(linear: Linear, cases: LayerCases) -> Gemm:
    width = linear.out_features / (cases.tensor if linear.split == "column" else 1.0)
    depth = linear.in_features / (cases.tensor if linear.split == "row" else 1.0)
    # A replicated weight sees the tokens of its rank only where the sequence is split.
    rows = cases.shard_tokens if linear.split == "none" else cases.tokens
    return _stack(rows, width, depth, 1.0)


def _stack(
    rows: FloatColumn, width: FloatColumn | float, depth: FloatColumn | float, batch: FloatColumn | float
) -> Gemm:
    ones = np.ones_like(rows)
    return Gemm(rows, ones * width, ones * depth, ones * batch)


def _merge(shapes: list[Gemm], linears: Sequence[Linear], cases: LayerCases) -> list[Gemm]:
    names = [linear.name for linear in linears]
    merged = list(shapes)
    for group in MERGED:
        members = [names.index(name) for name in group if name in names]
        if len(members) < 2:
            continue
        total = np.sum([shapes[member].n for member in members], axis=0)
        for position, member in enumerate(members):
            alone = shapes[member]
            width = np.where(cases.fused, total if position == 0 else 0.0, alone.n)
            merged[member] = Gemm(alone.m, width, alone.k, alone.batch)
    return merged


def _seconds(
    shapes: list[Gemm], linears: Sequence[Linear], cases: LayerCases, device: Device, *, trained: bool
) -> LinearSeconds:
    if not shapes:
        nothing = np.zeros(len(cases))
        return LinearSeconds(*(nothing,) * 8)
    merged = _merge(shapes, linears, cases)
    m, n, k, batch = (np.stack([getattr(shape, name) for shape in merged]) for name in ("m", "n", "k", "batch"))
    wide = np.array([linear.name in {"router", "shared_gate"} for linear in linears])[:, None]
    slow, fast = device.wide_rate(cases.table.precision), device.linear_rate(cases.table.precision)
    in_fp4 = fp4_share(cases.table)
    # Some layers are in bf16, the others in NVFP4: what they take on average.
    mixed = np.where(in_fp4 > 0, 1.0 / ((1.0 - in_fp4) / slow + in_fp4 / fast), fast)
    rate = np.where(wide, slow, mixed)
    element = np.where(cases.table.is_choice("precision", "fp32"), 4.0, 2.0)
    forward = Gemm(m, n, k, batch)
    passes = (forward, Gemm(m, k, n, batch), Gemm(n, k, m, batch))
    each = [np.where(n > 0, gemm_seconds(shape, rate, element, device), 0.0) for shape in passes]
    seconds = [products.sum(axis=0) for products in each]
    weights = (batch * n * k).sum(axis=0)
    scale = 1.0 if trained else 0.0
    return LinearSeconds(
        forward=seconds[0],
        last_forward=each[0][-1],
        input_gradient=seconds[1],
        weight_gradient=seconds[2] * scale,
        weights=weights,
        trained_weights=weights * scale,
        operators=(n > 0).sum(axis=0).astype(np.float64),
        cast_elements=np.where(wide, 0.0, batch * m * (k + n) * (n > 0)).sum(axis=0),
    )
