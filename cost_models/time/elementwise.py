"""Memory-bound work of a block: bytes that norms, residuals, rotary embedding, activations and softmax move.

Bytes per element follow from which tensors each kernel reads and writes in 16 bit, with fp32 temporaries where the code
makes them: Megatron-LM's fused kernels, torchtitan's llama3 model, transformers' modeling_llama.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import Block, MixtureOfExperts, ModelArchitecture
from cost_models.memory.saved_norms import READERS
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.expert_launches import DISPATCH_OPERATORS, ROUTING_OPERATORS
from cost_models.time.linears import routed_tokens
from cost_models.time.operators import AttentionShape

NORM: Final = (4.0, 8.0)
"""Fused norm, bytes per element (forward, backward): read x, write y; read x, dy and the old dx, write dx."""
EAGER_RMSNORM: Final = (36.0, 60.0)
"""LlamaRMSNorm op by op in fp32: cast, square, mean, scale, cast back, weight; and its autograd."""
RESIDUAL: Final = (6.0, 6.0)
"""Read both, write the sum; backward adds the two branches."""
AUTOCAST_RESIDUAL: Final = (4.0, 4.0)
"""More under autocast, where what a product gives in 16 bit is added to a stream in fp32: 4 + 2 read, 4 written."""
AUTOCAST_LAYERNORM: Final = (4.0, 8.0)
"""More there: layer_norm reads and writes fp32 (RMSNorm op by op does so anyway)."""
AUTOCAST_INPUT: Final = (6.0, 6.0)
"""There, per product that reads a norm's output: cast on its way in (4 + 2), its gradient on its way back. Query, key
and value cast one each; inductor makes the casts in the kernel that writes the norm."""
DROPOUT: Final = (2.0, 5.0)
"""More per dropped element: the mask, and a kernel of its own in backward."""
ROTARY: Final = (4.0, 4.0)
PLAIN_ROTARY: Final = (20.0, 20.0)
"""Slices, negation, concatenation, two products and a sum (or fp32 complex products)."""
GATED: Final = (6.0, 10.0)
"""SwiGLU in one kernel per width: reads gate and up, writes the product; backward reads three, writes two."""
PLAIN_GATED: Final = (10.0, 18.0)
PLAIN_ACTIVATION: Final = (4.0, 6.0)
SOFTMAX: Final = (4.0, 6.0)
"""Scale, mask and softmax in one kernel."""
PLAIN_SOFTMAX: Final = (20.0, 16.0)
"""Mask added, fp32 softmax, cast back."""
UNFUSED_SOFTMAX_OPERATORS: Final = 6.0
"""More where Megatron-LM's fused kernel does not take the shape: cast, scale, fill, softmax, cast back, for one."""
FUSED_SOFTMAX_BATCH: Final = 4.0
"""Of heads times samples, its kernel takes multiples (FusedScaleMaskSoftmax.is_kernel_available)."""
FUSED_SOFTMAX_KEYS: Final = 16384.0
"""At most (same function)."""
CONTEXT_COPY: Final = (4.0, 4.0)
"""Eager attention's output and its gradient, permuted and made contiguous."""
JOINED_GRADIENTS: Final = 4.0
"""Per element of queries, keys and values: where one product makes all three, their gradients are joined."""
BIAS_GRADIENT: Final = 2.0
"""Read per output element of a linear layer with a bias, whose gradient is a sum over the tokens."""
EAGER_ATTENTION_OPERATORS: Final = (12.0, 16.0)
"""Operators of eager attention beside its two products: views, permutations, an output buffer, mask, softmax, copies
(Megatron-LM's DotProductAttention; transformers' eager_attention_forward)."""
PERMUTE: Final = (8.0, 8.0)
"""Tokens sorted by expert and back, weighted by their gate."""
EXPERT_BIAS: Final = (12.0, 16.0)
"""Transformer Engine's grouped experts with biases: the second one, weighted by each token's gate, is made for every
expert (2), added (6) and joined (4) outside of the product; backward makes and sums a product for the gradients of bias
and of gate each (6 + 6) and joins the parts (4; Megatron-Core's TEGroupedMLP._apply_bias, gates in 16 bit)."""
EXPERT_BIAS_OPERATORS: Final = 2.0
"""Of each expert there."""


@dataclass(frozen=True)
class Traffic:
    """Bytes and operators of element-wise work; columns (u,)."""

    forward: FloatColumn
    backward: FloatColumn
    operators: FloatColumn


@dataclass(frozen=True)
class ElementwiseTraffic:
    """By what selective recomputation can pick."""

    norms: Traffic
    activation: Traffic
    core_attention: Traffic
    """Softmax of eager attention."""
    rest: Traffic

    @property
    def forward(self) -> FloatColumn:
        """Bytes of the forward pass."""
        return self.norms.forward + self.activation.forward + self.core_attention.forward + self.rest.forward

    @property
    def backward(self) -> FloatColumn:
        """Bytes of the backward pass."""
        return self.norms.backward + self.activation.backward + self.core_attention.backward + self.rest.backward

    @property
    def operators(self) -> FloatColumn:
        """Operators of one forward."""
        return self.norms.operators + self.activation.operators + self.core_attention.operators + self.rest.operators


def elementwise_traffic(
    model: ModelArchitecture,
    block: Block,
    shape: AttentionShape,
    cases: LayerCases,
    *,
    dropout: bool,
    flash: bool,
    trained: bool,
) -> ElementwiseTraffic:
    """All element-wise work of one layer for one micro-batch."""
    rest = _rest(model, block, cases, dropout=dropout)
    backward = rest.backward
    if trained:
        backward = backward + BIAS_GRADIENT * _biased_elements(block, cases)
    if not flash:
        backward = backward + JOINED_GRADIENTS * cases.fused * _projected_elements(block, cases)
    return ElementwiseTraffic(
        norms=_norms(model, block, cases),
        activation=_activation(block, cases),
        core_attention=_softmax(shape, cases, len(block.attentions), dropout=dropout, flash=flash),
        rest=Traffic(rest.forward, backward, rest.operators),
    )


def _choose(
    cases: LayerCases, fused: tuple[float, float], plain: tuple[float, float]
) -> tuple[FloatColumn, FloatColumn]:
    one_kernel = cases.fused | cases.compiled
    return np.where(one_kernel, fused[0], plain[0]), np.where(one_kernel, fused[1], plain[1])


def _norms(model: ModelArchitecture, block: Block, cases: LayerCases) -> Traffic:
    attention = block.attention
    width = (attention.heads + attention.key_value_heads) * attention.head_dim
    elements = block.norms * cases.shard_tokens * model.hidden_size
    if attention.norms:
        elements = elements + cases.tokens * width / cases.tensor
    unfused = cases.eager & (model.norm == "rmsnorm")
    wide = cases.autocast & ~cases.compiled & (model.norm == "layernorm")
    forward = np.where(unfused, EAGER_RMSNORM[0], NORM[0]) + AUTOCAST_LAYERNORM[0] * wide
    backward = np.where(unfused, EAGER_RMSNORM[1], NORM[1]) + AUTOCAST_LAYERNORM[1] * wide
    operators = (block.norms + attention.norms) * np.where(unfused, 6.0, 1.0)
    return Traffic(elements * forward, elements * backward, operators)


def _activation(block: Block, cases: LayerCases) -> Traffic:
    part = block.feed_forward
    if isinstance(part, MixtureOfExperts):
        elements = routed_tokens(part, cases) * part.routed.hidden
        if part.shared:
            elements = elements + cases.tokens * part.shared.hidden / cases.tensor
        gated = part.routed.gated
        loops = np.where(cases.eager, part.experts / cases.expert, 1.0)
    else:
        elements = cases.tokens * part.hidden / cases.tensor
        gated = part.gated
        loops = np.ones(len(cases))
    forward, backward = (
        _choose(cases, GATED, PLAIN_GATED) if gated else _choose(cases, PLAIN_ACTIVATION, PLAIN_ACTIVATION)
    )
    plain = ~(cases.fused | cases.compiled) & gated
    return Traffic(elements * forward, elements * backward, loops * np.where(plain, 2.0, 1.0))


def _softmax(shape: AttentionShape, cases: LayerCases, attentions: int, *, dropout: bool, flash: bool) -> Traffic:
    if flash:
        zero = np.zeros(len(cases))
        return Traffic(zero, zero, zero + attentions)
    elements = attentions * shape.batch_heads * shape.queries * shape.keys
    context = attentions * shape.batch_heads * shape.queries * shape.value_head_dim
    unfused = cases.fused & ((shape.batch_heads % FUSED_SOFTMAX_BATCH != 0) | (shape.keys > FUSED_SOFTMAX_KEYS))
    one_kernel = (cases.fused & ~unfused) | cases.compiled
    forward, backward = (np.where(one_kernel, *pair) for pair in zip(SOFTMAX, PLAIN_SOFTMAX, strict=True))
    more = DROPOUT if dropout else (0.0, 0.0)
    operators = np.where(cases.fused, EAGER_ATTENTION_OPERATORS[0], EAGER_ATTENTION_OPERATORS[1]) + dropout
    return Traffic(
        elements * (forward + more[0]) + context * CONTEXT_COPY[0],
        elements * (backward + more[1]) + context * CONTEXT_COPY[1],
        attentions * (operators + UNFUSED_SOFTMAX_OPERATORS * unfused),
    )


def _rest(model: ModelArchitecture, block: Block, cases: LayerCases, *, dropout: bool) -> Traffic:
    more = DROPOUT if dropout else (0.0, 0.0)
    sublayers = 1.0 + len(block.attentions)
    residual = sublayers * cases.shard_tokens * model.hidden_size
    cast = sum(linear.in_features for linear in block.linears if linear.name in READERS and linear.copies == 1)
    inputs = cases.shard_tokens * cast * (cases.autocast & ~cases.compiled)
    forward = residual * (RESIDUAL[0] + AUTOCAST_RESIDUAL[0] * cases.autocast + more[0]) + inputs * AUTOCAST_INPUT[0]
    backward = residual * (RESIDUAL[1] + AUTOCAST_RESIDUAL[1] * cases.autocast + more[1]) + inputs * AUTOCAST_INPUT[1]
    operators = np.full(len(cases), sublayers + 2.0 * len(block.attentions))  # residuals, reshapes around attention
    if model.position_embeddings == "rotary":
        attention = block.attention
        heads = attention.heads + attention.key_value_heads
        dim = attention.latent.rope_head_dim if attention.latent else attention.head_dim
        elements = cases.tokens * heads * dim / cases.tensor
        turned = _choose(cases, ROTARY, PLAIN_ROTARY)
        forward = forward + elements * turned[0]
        backward = backward + elements * turned[1]
        operators = operators + np.where(cases.fused | cases.compiled, 2.0, 12.0)
    if isinstance(block.feed_forward, MixtureOfExperts):
        moved = routed_tokens(block.feed_forward, cases) * model.hidden_size
        forward = forward + moved * PERMUTE[0]
        backward = backward + moved * PERMUTE[1]
        local = block.feed_forward.experts / cases.expert
        operators = operators + np.where(cases.eager, 4.0 * local, ROUTING_OPERATORS + DISPATCH_OPERATORS)
        if block.feed_forward.routed.linears[-1].bias:
            forward = forward + moved * EXPERT_BIAS[0] * cases.fused
            backward = backward + moved * EXPERT_BIAS[1] * cases.fused
            operators = operators + EXPERT_BIAS_OPERATORS * local * cases.fused
    return Traffic(forward, backward, operators)


def _biased_elements(block: Block, cases: LayerCases) -> FloatColumn:
    """Outputs of linear layers with a bias; that of a split row is added after the sum over ranks, on every rank."""
    elements = np.zeros(len(cases))
    for linear in block.linears:
        if linear.bias and linear.copies == 1:
            rows = cases.tokens / cases.tensor if linear.split == "column" else cases.shard_tokens
            elements = elements + linear.out_features * rows
    return elements


def _projected_elements(block: Block, cases: LayerCases) -> FloatColumn:
    """Queries, keys and values of one rank."""
    width = sum(linear.out_features for linear in block.attention_linears if linear.name in {"q", "k", "v", "qkv"})
    elements: FloatColumn = width * cases.tokens / cases.tensor
    return elements
