"""LoRA beside every matrix of the blocks, everything else frozen (arXiv 2106.09685; PEFT's lora.Linear)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.torch_steps.models import Decoder


class Adapted(nn.Module):
    """A frozen matrix and its adapter, which casts what it reads to its own dtype."""

    def __init__(self, base: nn.Linear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = self.base(x)
        adapted: Tensor = self.up(self.down(x.to(self.down.weight.dtype)))
        return (whole + adapted).to(whole.dtype)


def adapt(model: Decoder, rank: int, dtype: torch.dtype) -> None:
    """Freeze the model and put adapters into its blocks."""
    model.requires_grad_(False)
    for layer in model.layers:
        for part in (layer.attention, layer.feed_forward):
            for name, matrix in list(part.named_children()):
                setattr(part, name, Adapted(matrix, rank, dtype))
