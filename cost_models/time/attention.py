"""The attention kernels of a block for one micro-batch: what one rank attends to, and how fast its kernel does it."""

from __future__ import annotations

import numpy as np

from cost_models.architecture import Attention, Block
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.communication import element_bytes
from cost_models.time.device import Device
from cost_models.time.operators import (
    AttentionShape,
    aligned_share,
    eager_products,
    flash_seconds,
    gemm_seconds,
    visible_span,
)


def core_seconds(problem: Problem, block: Block, cases: LayerCases, device: Device) -> tuple[FloatColumn, FloatColumn]:
    """(forward, backward), columns (u,): kernels of all attentions of the block, without the softmax of eager ones.

    An encoder's output is as long as the decoder's input.
    """
    flash = problem.workload.attention == "flash"
    rate = _flash_rate(problem, cases, device)
    forward, backward = np.zeros(len(cases)), np.zeros(len(cases))
    for attention in block.attentions:
        shape = attention_shape(attention, cases)
        seconds = flash_seconds(shape, rate, device) if flash else _eager(shape, cases, device)
        forward, backward = forward + seconds[0], backward + seconds[1]
    return forward, backward


def attention_shape(attention: Attention, cases: LayerCases) -> AttentionShape:
    """What one rank attends to; context parallelism balances causal work, whichever way it splits it."""
    keys = np.full(len(cases), cases.sequence)
    by_heads = cases.table.is_choice("context_parallel_kind", "all-to-all")
    heads = cases.table.micro_batch_size * attention.heads / cases.tensor
    return AttentionShape(
        batch_heads=np.where(by_heads, heads / cases.context, heads),
        queries=np.where(by_heads, cases.sequence, cases.sequence / cases.context),
        span=visible_span(keys, causal=attention.causal, window=attention.window),
        keys=keys,
        head_dim=float(attention.head_dim),
        value_head_dim=float(attention.value_head_dim),
    )


def _flash_rate(problem: Problem, cases: LayerCases, device: Device) -> FloatColumn:
    """The peak, as far as the kernel that a framework calls can use it.

    Kernels with a position bias were Triton's (llm-foundry, attn_impl triton) before FlashAttention 2.4 had them.
    """
    second = device.generation.plain_flash
    newest = cases.fact("newest_attention")
    biased = problem.model.position_embeddings == "alibi"
    reached = second * device.kernels.biased_flash if biased else np.where(newest, 1.0, second)
    rate: FloatColumn = device.wide_peak(cases.table.precision) * reached
    return rate


def _eager(shape: AttentionShape, cases: LayerCases, device: Device) -> tuple[FloatColumn, FloatColumn]:
    narrower = np.minimum(*aligned_share(np.array([shape.head_dim, shape.value_head_dim])))
    rate, element = device.wide_rate(cases.table.precision) * narrower, element_bytes(cases)
    forward = np.sum([gemm_seconds(product, rate, element, device) for product in eager_products(shape)], axis=0)
    return forward, 2 * forward
