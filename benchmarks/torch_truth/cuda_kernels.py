"""What CUDA's operators and autocast save, on tensors of the meta device.

Composite operators of PyTorch choose their kernels by device: on meta they fall apart into pieces that no GPU runs. A
function mode puts CUDA's choice in their place: fused dropout (a mask of one byte an element), flash attention,
efficient attention where there is a mask or fp32, fused RMSNorm. Autocast has no kernels for meta either: `autocast`
casts by the lists of torch's documentation ("CUDA Ops that can autocast to float16 / float32").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

LOWER = (
    functional.linear, functional.conv2d, functional.scaled_dot_product_attention, torch.conv2d, torch.matmul,
    torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.mm, torch.addmm, torch.baddbmm,
    torch.Tensor.baddbmm, torch.einsum,
)  # fmt: skip
RAISED = (
    functional.layer_norm, functional.softmax, functional.log_softmax, functional.softplus, torch.softmax,
    torch.Tensor.softmax, torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.rsqrt, torch.Tensor.rsqrt, torch.exp,
    torch.Tensor.exp, torch.Tensor.cumsum,
)  # fmt: skip
HALF = (torch.bfloat16, torch.float16)


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool) -> torch.Tensor:
    """(batch, heads, tokens, head size); keys and values may have fewer heads."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal)[0]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    same_width = query.shape[-1] == value.shape[-1]
    if attn_mask is None and query.dtype in HALF and same_width:
        return flash(query, key, value, dropout_p, is_causal)
    if enable_gqa and key.shape[1] != query.shape[1]:
        raise NotImplementedError("efficient attention needs keys and values of all heads")
    if attn_mask is not None:
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


def _dropout(read: torch.Tensor, p: float = 0.5, training: bool = True, **_: Any) -> torch.Tensor:
    return torch.native_dropout(read, p, True)[0] if training and p > 0 else read


class _FusedRmsNorm(torch.autograd.Function):
    """CUDA's aten::_fused_rms_norm, which meta has not: saves input, weight and the fp32 reciprocal root mean square
    (pytorch/tools/autograd/derivatives.yaml)."""

    @staticmethod
    def forward(context: Any, read: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        statistics = torch.empty(*read.shape[:-1], 1, dtype=torch.float32, device=read.device)
        context.save_for_backward(read, weight, statistics)
        return torch.empty_like(read)


def _rms_norm(read: torch.Tensor, _: Any, weight: torch.Tensor, **__: Any) -> torch.Tensor:
    return _FusedRmsNorm.apply(read, weight)


REPLACED: Mapping[Any, Callable[..., torch.Tensor]] = {
    functional.scaled_dot_product_attention: attention,
    functional.dropout: _dropout,
    functional.rms_norm: _rms_norm,
}


class CudaKernels(TorchFunctionMode):
    """CUDA's choice of kernels; with `autocast`, weights and inputs cast as torch.autocast does."""

    def __init__(self, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.autocast = autocast
        self.copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Casts of leaves are cached: the leaf by id, and its copy."""

    def weight_copies(self) -> Iterable[int]:
        """Storages of cast weights."""
        return [copy.untyped_storage()._cdata for _, copy in self.copies.values()]

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if value.is_leaf and value.requires_grad and value.dtype == torch.float32:
            if id(value) not in self.copies:
                self.copies[id(value)] = (value, value.to(dtype))
            return self.copies[id(value)][1]
        return value.to(dtype)

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if self.autocast is not None:
            to = self.autocast if func in LOWER else None
            if func in RAISED and given.get("dtype") is None:
                to = torch.float32
            if to is not None:
                args, given = tree_map(lambda value: self._cast(value, to), (args, given))
        given.pop("_stacklevel", None)
        return REPLACED.get(func, func)(*args, **given)
