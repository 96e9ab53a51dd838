"""Liger-Kernel's fused linear cross-entropy (arXiv 2410.10989, section 3.2), allocation for allocation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FusedHead(nn.Linear):
    """The head and its loss in one."""

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = _FusedLoss.apply(hidden.flatten(0, 1), self.weight, labels.flatten())
        return loss


class _FusedLoss(torch.autograd.Function):
    """Gradients are made chunk by chunk in forward and wait for backward; the kernel works in the logits' place."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
        tokens, width = hidden.shape
        size = _chunk_tokens(tokens, width, weight.shape[0])
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        of_hidden, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        losses = torch.zeros(tokens, dtype=torch.float32)
        storage = torch.empty(size, weight.shape[0], dtype=dtype)
        for begin in range(0, tokens, size):
            chunk = hidden[begin : begin + size]
            logits = storage[: chunk.shape[0]]
            torch.mm(chunk.to(dtype), weight.to(dtype).t(), out=logits)
            of_hidden[begin : begin + size] = logits @ weight.to(dtype)
            # On CUDA one addmm writes to the accumulator of either dtype.
            of_weight.add_(logits.sum())
        del storage, logits
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight, None


def _chunk_tokens(tokens: int, width: int, vocabulary: int) -> int:
    """So many that their logits are about as large as all hidden states."""
    chunks = -(-vocabulary // width)
    return min(1 << (-(-tokens // chunks) - 1).bit_length(), tokens)
