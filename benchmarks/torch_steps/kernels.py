"""Kernels that a CPU build of torch lacks, as operators that allocate what the CUDA ones do and compute nothing.

Flash attention: what `mha_fwd` and `mha_bwd` of torch's flash_api.cpp make; RMSNorm: `aten::_fused_rms_norm`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("paraplan::flash", mutates_args=())
def flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, tokens, heads, width) with fewer key heads: the output and the fp32 log-sum-exp of each query."""
    raise NotImplementedError


@flash.register_fake
def _(q: Tensor, _: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, _ = q.shape
    return q.new_empty(batch, tokens, heads, v.shape[-1]), q.new_empty(batch, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("paraplan::flash_backward", mutates_args=())
def flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    raise NotImplementedError


@flash_backward.register_fake
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@torch.library.custom_op("paraplan::scratch", mutates_args=())
def scratch(like: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Memory that a kernel works in."""
    raise NotImplementedError


@scratch.register_fake
def _(like: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    return like.new_empty(shape, dtype=dtype)


def _save_flash(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _flash_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, _, statistics = ctx.saved_tensors
    grad = grad.contiguous()
    batch, tokens, heads, width = q.shape
    # The fp32 sum of the gradient of the queries, and the row sums of gradient times output.
    sums = [scratch(q, [batch, tokens, heads, width], torch.float32), scratch(q, list(statistics.shape), torch.float32)]
    if heads != k.shape[2]:
        # Gradients of keys and values a query head each, summed over a group afterwards.
        sums += [scratch(q, [batch, tokens, heads, t.shape[-1]], q.dtype) for t in (k, v)]
    result: tuple[Tensor, Tensor, Tensor] = flash_backward(grad, q, k, v)
    del sums
    return result


flash.register_autograd(_flash_backward, setup_context=_save_flash)


@torch.library.custom_op("paraplan::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The normed input, and an fp32 scale a row."""
    raise NotImplementedError


@rms_norm.register_fake
def _(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


@torch.library.custom_op("paraplan::rms_norm_backward", mutates_args=())
def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the input and the weight."""
    raise NotImplementedError


@rms_norm_backward.register_fake
def _(_: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save_norm(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _norm_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    x, weight, _ = ctx.saved_tensors
    result: tuple[Tensor, Tensor] = rms_norm_backward(grad, x, weight)
    return result


rms_norm.register_autograd(_norm_backward, setup_context=_save_norm)
