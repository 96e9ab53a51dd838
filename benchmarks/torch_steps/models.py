"""Decoders as torchtitan writes them (norms fused, activations plain) and as transformers has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.torch_steps import kernels


@dataclass(frozen=True)
class Dims:
    """Dimensions of a decoder, named as the contract's `architecture` names them."""

    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    ffn_hidden_size: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.attention_heads


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return kernels.rms_norm(x, self.weight)[0]


class Attention(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.width = dims.head_dim
        keys = dims.key_value_heads * dims.head_dim
        self.wq = nn.Linear(dims.hidden_size, dims.hidden_size, bias=False)
        self.wk = nn.Linear(dims.hidden_size, keys, bias=False)
        self.wv = nn.Linear(dims.hidden_size, keys, bias=False)
        self.wo = nn.Linear(dims.hidden_size, dims.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.width) for w in (self.wq, self.wk, self.wv))
        q, k = _rotated(q, rotation), _rotated(k, rotation)
        out = kernels.flash(q, k, v)[0]
        return self.wo(out.view(batch, tokens, -1))


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * rotation[None, :, None, :]).flatten(3)
    return turned.type_as(x)


class Perceptron(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.w1 = nn.Linear(dims.hidden_size, dims.ffn_hidden_size, bias=False)
        self.w2 = nn.Linear(dims.ffn_hidden_size, dims.hidden_size, bias=False)
        self.w3 = nn.Linear(dims.hidden_size, dims.ffn_hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.attention = Attention(dims)
        self.feed_forward = Perceptron(dims)
        self.attention_norm = Norm(dims.hidden_size)
        self.ffn_norm = Norm(dims.hidden_size)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), rotation)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    """torchtitan's Llama 3: embedding, blocks, norm, head."""

    rotation: Tensor

    def __init__(self, dims: Dims, sequence_length: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(dims.vocab_size, dims.hidden_size)
        self.layers = nn.ModuleList(Block(dims) for _ in range(dims.layers))
        self.norm = Norm(dims.hidden_size)
        self.output = nn.Linear(dims.hidden_size, dims.vocab_size, bias=False)
        shape = (sequence_length, dims.head_dim // 2)
        self.register_buffer("rotation", torch.empty(shape, dtype=torch.complex64))

    def forward(self, tokens: Tensor, *labels: Tensor) -> Tensor:
        """The logits; what the head makes of `labels` besides, where it takes them."""
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.rotation)
        return self.output(self.norm(h), *labels)
