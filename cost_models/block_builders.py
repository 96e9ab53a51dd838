"""Builders of blocks and models that the config readers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cost_models.architecture import (
    Attention,
    Block,
    FeedForward,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    ModelArchitecture,
)

NormKind = Literal["layernorm", "rmsnorm"]
PositionKind = Literal["learned", "rotary", "alibi", "none"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape of grouped-query attention."""

    query: int
    key_value: int
    dim: int

    @property
    def query_width(self) -> int:
        """Features of all query heads together."""
        return self.query * self.dim

    @property
    def key_value_width(self) -> int:
        """Features of all key (or value) heads together."""
        return self.key_value * self.dim


@dataclass(frozen=True, slots=True)
class AttentionExtras:
    """What some families add to plain attention; the fields are those of `Attention`."""

    window: int | None = None
    causal: bool = True
    norm_parameters: int = 0
    norms: int = 0
    other_parameters: int = 0
    soft_cap: bool = False


PLAIN = AttentionExtras()


def attention(
    hidden: int,
    heads: Heads,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    fused: bool = False,
    extras: AttentionExtras = PLAIN,
) -> Attention:
    """Attention with q, k, v (or one fused `qkv`) and o projections."""
    if fused:
        inputs: tuple[Linear, ...] = (
            Linear("qkv", hidden, heads.query_width + 2 * heads.key_value_width, qkv_bias, "column"),
        )
    else:
        widths = {"q": heads.query_width, "k": heads.key_value_width, "v": heads.key_value_width}
        inputs = tuple(Linear(name, hidden, width, qkv_bias, "column") for name, width in widths.items())
    return Attention(
        heads=heads.query,
        key_value_heads=heads.key_value,
        head_dim=heads.dim,
        value_head_dim=heads.dim,
        linears=(*inputs, Linear("o", heads.query_width, hidden, out_bias, "row")),
        window=extras.window,
        causal=extras.causal,
        norm_parameters=extras.norm_parameters,
        norms=extras.norms,
        other_parameters=extras.other_parameters,
        soft_cap=extras.soft_cap,
    )


def latent_attention(
    hidden: int, heads: int, latent: LatentAttention, *, nope_head_dim: int, value_head_dim: int, bias: bool
) -> Attention:
    """Multi-head latent attention; `bias` is on the projections from and to the hidden state, except a full-rank q.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; where the biases sit: transformers' DeepseekV2Attention.
    """
    head_dim = nope_head_dim + latent.rope_head_dim
    if latent.q_rank is None:
        queries: tuple[Linear, ...] = (Linear("q", hidden, heads * head_dim, split="column"),)
    else:
        queries = (
            Linear("q_down", hidden, latent.q_rank, bias),
            Linear("q_up", latent.q_rank, heads * head_dim, split="column"),
        )
    return Attention(
        heads=heads,
        key_value_heads=heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        linears=(
            *queries,
            Linear("kv_down", hidden, latent.kv_rank + latent.rope_head_dim, bias),
            Linear("kv_up", latent.kv_rank, heads * (nope_head_dim + value_head_dim), split="column"),
            Linear("o", heads * value_head_dim, hidden, bias, "row"),
        ),
        latent=latent,
        norm_parameters=latent.kv_rank + (latent.q_rank or 0),
        norms=1 if latent.q_rank is None else 2,
    )


def feed_forward(
    hidden: int,
    width: int,
    *,
    gated: bool,
    activation: str,
    bias: bool = False,
    fused: bool = False,
    copies: int = 1,
) -> FeedForward:
    """A perceptron `width` wide; `fused`: gate and up are one matrix; `copies`: stacked experts."""
    if gated and fused:
        inputs: tuple[Linear, ...] = (Linear("gate_up", hidden, 2 * width, bias, "column", copies),)
    else:
        names = ("gate", "up") if gated else ("up",)
        inputs = tuple(Linear(name, hidden, width, bias, "column", copies) for name in names)
    return FeedForward(
        hidden=width,
        gated=gated,
        activation=activation,
        linears=(*inputs, Linear("down", width, hidden, bias, "row", copies)),
    )


def mixture(
    hidden: int,
    experts: int,
    experts_per_token: int,
    routed: FeedForward,
    *,
    router_bias: bool = False,
    shared: FeedForward | None = None,
    shared_gate: bool = False,
    groups: int = 1,
    groups_per_token: int = 1,
) -> MixtureOfExperts:
    """Routed experts (`routed` carries `copies = experts`) with a linear router."""
    return MixtureOfExperts(
        experts=experts,
        experts_per_token=experts_per_token,
        routed=routed,
        router=Linear("router", hidden, experts, router_bias),
        shared=shared,
        shared_gate=Linear("shared_gate", hidden, 1) if shared_gate else None,
        groups=groups,
        groups_per_token=groups_per_token,
    )


@dataclass(frozen=True, slots=True)
class Trunk:
    """Everything of a model but its blocks."""

    name: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    norm: NormKind
    positions: PositionKind
    max_position_embeddings: int | None
    final_norm_parameters: int
    embedding_parameters: int | None = None
    """None: vocab × hidden."""
    head: Linear | None = None
    """Of an untied model; None: vocab × hidden without bias."""
    position_parameters: int = 0
    input_parameters: int = 0
    output_parameters: int = 0
    logit_soft_cap: bool = False
    sequence_length: int | None = None
    assumptions: list[str] = field(default_factory=list)


def assemble(trunk: Trunk, layers: Sequence[Block]) -> ModelArchitecture:
    """The whole model; equal blocks become one."""
    kinds: dict[Block, int] = {}
    order = tuple(kinds.setdefault(block, len(kinds)) for block in layers)
    default_head = Linear("head", trunk.hidden, trunk.vocab, split="column")
    embedding = trunk.vocab * trunk.hidden if trunk.embedding_parameters is None else trunk.embedding_parameters
    return ModelArchitecture(
        name=trunk.name,
        model_type=trunk.model_type,
        hidden_size=trunk.hidden,
        vocab_size=trunk.vocab,
        blocks=tuple(kinds),
        layer_blocks=order,
        embedding_parameters=embedding,
        head=None if trunk.tied else trunk.head or default_head,
        tied_embeddings=trunk.tied,
        norm=trunk.norm,
        position_embeddings=trunk.positions,
        max_position_embeddings=trunk.max_position_embeddings,
        position_parameters=trunk.position_parameters,
        input_parameters=trunk.input_parameters,
        output_parameters=trunk.output_parameters,
        final_norm_parameters=trunk.final_norm_parameters,
        logit_soft_cap=trunk.logit_soft_cap,
        sequence_length=trunk.sequence_length,
        assumptions=tuple(trunk.assumptions),
    )
