"""Decoders in the shape of Llama, as a table: what one family has that another has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.architecture import Block, FeedForward, MixtureOfExperts, ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, NormKind, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys

Switch = bool | tuple[str, bool]
"""Always or never; or by a key, with its default."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of one config, as its family's key names give them."""

    hidden: int
    ffn: int
    layers: int
    vocab: int
    heads: Heads
    activation: str
    mlp_bias: bool


WindowPolicy = Callable[[ConfigKeys, int], Sequence[int | None]]
"""Attention window of each layer."""
FeedForwardPolicy = Callable[[ConfigKeys, Shape], Sequence[FeedForward | MixtureOfExperts]]
"""Feed-forward part of each layer."""


def full_attention(_keys: ConfigKeys, layers: int) -> Sequence[int | None]:
    """No window anywhere."""
    return [None] * layers


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """One `model_type`; numbers are the defaults of its transformers config class (transformers 5.24)."""

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    key_value_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: hidden / heads."""
    own_head_dim: bool = True
    """False: a `head_dim` key is not looked at."""
    floor_head_dim: bool = False
    """Hidden / heads need not be whole (the class's own defaults are not)."""
    max_positions: int = 2048
    activation: str = "silu"
    activation_key: str = "hidden_act"
    gated: bool = True
    tied: bool = False
    norm: NormKind = "rmsnorm"
    norm_weights: int | None = None
    """Vectors of one norm; None: 2 for a LayerNorm, else 1."""
    norms: int = 2
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    parallel: Switch = False
    norms_parallel: int = 1
    qk_norm: Switch = False
    qk_norm_span: Literal["head", "nominal_head", "width", "hidden"] = "head"
    """One norm shared by all heads, or weights over all of them (`width`); `nominal_head` and `hidden` are the same
    for heads of hidden / heads features, whatever `head_dim` says."""
    qk_norm_weights: int = 1
    windows: WindowPolicy = full_attention
    feed_forwards: FeedForwardPolicy | None = None
    attention_soft_cap: float | None = None
    has_attention_soft_cap: bool = False
    logit_soft_cap: float | None = None
    has_logit_soft_cap: bool = False
    sinks: bool = False
    inert: tuple[str, ...] = ()
    fixed: tuple[tuple[str, tuple[object, ...]], ...] = ()
    """Keys that are understood with these values only."""

    @property
    def norm_vectors(self) -> int:
        """Vectors of one norm."""
        if self.norm_weights is not None:
            return self.norm_weights
        return 2 if self.norm == "layernorm" else 1


def read_decoder(family: DecoderFamily, keys: ConfigKeys) -> ModelArchitecture:
    """The model of one config."""
    keys.ignore(*family.inert)
    for key, accepted in family.fixed:
        keys.fixed(key, *accepted)
    shape = _shape(family, keys)
    blocks = _blocks(family, keys, shape)
    tied = keys.flag("tie_word_embeddings", family.tied)
    head_bias = shape.vocab if _switch(keys, family.head_bias) else 0
    return assemble(
        Trunk(
            name=keys.model_type,
            model_type=keys.model_type,
            hidden=shape.hidden,
            vocab=shape.vocab,
            tied=tied,
            norm=family.norm,
            positions="rotary",
            max_position_embeddings=keys.size("max_position_embeddings", family.max_positions),
            final_norm_parameters=family.norm_vectors * shape.hidden,
            output_parameters=head_bias,
            logit_soft_cap=family.has_logit_soft_cap
            and bool(keys.optional_number("final_logit_softcapping", family.logit_soft_cap)),
            assumptions=keys.assumptions,
        ),
        blocks,
    )


def read_heads(keys: ConfigKeys, heads: int, key_value_heads: int | None) -> tuple[int, int]:
    """Query and key-value heads, the latter dividing the former."""
    query = keys.size("num_attention_heads", heads)
    if key_value_heads is None:
        key_value = keys.size_or("num_key_value_heads", query, "as many as attention heads")
    else:
        key_value = keys.size("num_key_value_heads", key_value_heads)
    if query % key_value:
        message = f"num_key_value_heads {key_value} must divide num_attention_heads {query}"
        raise keys.error("num_key_value_heads", "not_divisible", message)
    return query, key_value


def divided_head_dim(keys: ConfigKeys, hidden: int, heads: int, key: str = "num_attention_heads") -> int:
    """Hidden size over heads, which must be whole."""
    if hidden % heads:
        raise keys.error(key, "not_divisible", f"{key} {heads} must divide the hidden size {hidden}")
    return hidden // heads


def _shape(family: DecoderFamily, keys: ConfigKeys) -> Shape:
    hidden = keys.size("hidden_size", family.hidden)
    query, key_value = read_heads(keys, family.heads, family.key_value_heads)
    return Shape(
        hidden=hidden,
        ffn=keys.size("intermediate_size", family.ffn),
        layers=keys.layers("num_hidden_layers", family.layers),
        vocab=keys.size("vocab_size", family.vocab),
        heads=Heads(query, key_value, _head_dim(family, keys, hidden, query)),
        activation=keys.activation(family.activation_key, family.activation),
        mlp_bias=_switch(keys, family.mlp_bias),
    )


def _head_dim(family: DecoderFamily, keys: ConfigKeys, hidden: int, heads: int) -> int:
    if not family.own_head_dim:
        dim = divided_head_dim(keys, hidden, heads)
        if (given := keys.optional_size("head_dim", dim)) != dim:
            keys.assumptions.append(f"hf_config.head_dim {given} ignored: {keys.model_type} uses hidden size / heads")
        return dim
    if keys.fields.get("head_dim") is not None or (family.head_dim is not None and "head_dim" not in keys.fields):
        return keys.size("head_dim", family.head_dim)
    dim = hidden // heads if family.floor_head_dim else divided_head_dim(keys, hidden, heads)
    return keys.size_or("head_dim", dim, "hidden_size / num_attention_heads")


def _blocks(family: DecoderFamily, keys: ConfigKeys, shape: Shape) -> list[Block]:
    parallel = _switch(keys, family.parallel)
    norms = family.norms_parallel if parallel else family.norms
    dense = feed_forward(
        shape.hidden,
        shape.ffn,
        gated=family.gated,
        activation=shape.activation,
        bias=shape.mlp_bias,
        fused=family.fused_gate_up,
    )
    parts = family.feed_forwards(keys, shape) if family.feed_forwards else [dense] * shape.layers
    qkv_bias, out_bias = _switch(keys, family.qkv_bias), _switch(keys, family.out_bias)
    qk_norm = _switch(keys, family.qk_norm)
    soft_cap = family.has_attention_soft_cap and bool(
        keys.optional_number("attn_logit_softcapping", family.attention_soft_cap)
    )
    windows = family.windows(keys, shape.layers)
    attentions = {
        window: attention(
            shape.hidden,
            shape.heads,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            fused=family.fused_qkv,
            extras=AttentionExtras(
                window=window,
                norms=2 if qk_norm else 0,
                norm_parameters=_qk_norm_size(family, shape) if qk_norm else 0,
                other_parameters=shape.heads.query if family.sinks else 0,
                soft_cap=soft_cap,
            ),
        )
        for window in set(windows)
    }
    return [
        Block(
            attention=attentions[window],
            feed_forward=part,
            norms=norms,
            norm_parameters=norms * family.norm_vectors * shape.hidden,
            parallel_residual=parallel,
        )
        for window, part in zip(windows, parts, strict=True)
    ]


def _qk_norm_size(family: DecoderFamily, shape: Shape) -> int:
    heads = shape.heads
    spans = {
        "head": 2 * heads.dim,
        "nominal_head": 2 * (shape.hidden // heads.query),
        "width": heads.query_width + heads.key_value_width,
        "hidden": shape.hidden + shape.hidden // heads.query * heads.key_value,
    }
    return family.qk_norm_weights * spans[family.qk_norm_span]


def _switch(keys: ConfigKeys, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else keys.flag(*switch)
