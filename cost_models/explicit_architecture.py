"""`ModelInput.architecture`: a decoder described by its dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cost_models.architecture import Attention, Block, FeedForward, MixtureOfExperts, ModelArchitecture
from cost_models.block_builders import (
    Heads,
    NormKind,
    PositionKind,
    Trunk,
    assemble,
    attention,
    feed_forward,
    mixture,
)
from cost_models.field_reader import LARGEST_LAYERS, FieldReader

LOC: Final = ("model", "architecture")
ASSUMED_POSITIONS: Final = 2048
"""Learned positions where neither the model nor a workload says how many: those of GPT-3 (arXiv 2005.14165, 2.1)."""


@dataclass(frozen=True, slots=True)
class _Style:
    positions: PositionKind
    norm: NormKind
    biases: bool

    def norm_size(self, hidden: int) -> int:
        """Parameters of one norm: LayerNorm has a shift as well."""
        return 2 * hidden if self.norm == "layernorm" else hidden


def build_architecture(
    fields: Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    name: str = "custom",
    parallel_residual: bool = False,
) -> ModelArchitecture:
    """The model that `fields` (of the contract) describe.

    A null field counts as left out. `sequence_length` is the workload's: as many learned positions are assumed where
    their number is left out. `parallel_residual`: attention and feed-forward share one input and one norm (PaLM); the
    API has no field for it.
    """
    given = {field: value for field, value in fields.items() if value is not None}
    reader = FieldReader(given, LOC, "an explicit architecture")
    hidden = reader.size("hidden_size", None)
    layers = reader.size("layers", None, largest=LARGEST_LAYERS)
    vocab = reader.size("vocab_size", None)
    tied = reader.flag("tied_embeddings", None)
    style = _style(reader)
    self_attention = attention(hidden, _heads(reader, hidden), qkv_bias=style.biases, out_bias=style.biases)
    feed_forwards = _feed_forwards(reader, hidden, layers, style)
    max_positions = _max_positions(reader, style, sequence_length)
    _refuse_unknown(reader)
    return assemble(
        Trunk(
            name=name,
            model_type="explicit",
            hidden=hidden,
            vocab=vocab,
            tied=tied,
            norm=style.norm,
            positions=style.positions,
            max_position_embeddings=max_positions,
            position_parameters=(max_positions or 0) * hidden if style.positions == "learned" else 0,
            final_norm_parameters=style.norm_size(hidden),
            assumptions=reader.assumptions,
        ),
        [_block(self_attention, part, hidden, style, parallel_residual=parallel_residual) for part in feed_forwards],
    )


def _style(reader: FieldReader) -> _Style:
    positions: PositionKind = reader.choice("position_embeddings", "rotary", ("learned", "rotary", "alibi", "none"))
    gpt = positions == "learned"
    norm: NormKind = reader.choice("norm", "layernorm" if gpt else "rmsnorm", ("layernorm", "rmsnorm"))
    return _Style(positions, norm, reader.flag("biases", gpt))


def _heads(reader: FieldReader, hidden: int) -> Heads:
    query = reader.size("attention_heads", None)
    key_value = reader.size("key_value_heads", None)
    if query % key_value:
        raise reader.error(
            "key_value_heads", "not_divisible", f"key_value_heads {key_value} must divide attention_heads {query}"
        )
    if "head_dim" in reader.fields:
        return Heads(query, key_value, reader.size("head_dim", None))
    if hidden % query:
        raise reader.error(
            "attention_heads", "not_divisible", f"attention_heads {query} must divide hidden_size {hidden}"
        )
    dim = hidden // query
    reader.read.add("head_dim")
    reader.assumptions.append(f"architecture.head_dim left out: {dim}, hidden_size / attention_heads")
    return Heads(query, key_value, dim)


def _feed_forwards(
    reader: FieldReader, hidden: int, layers: int, style: _Style
) -> list[FeedForward | MixtureOfExperts]:
    width = reader.size("ffn_hidden_size", None)
    gated = reader.flag("gated_mlp", None)
    activation = "silu" if gated else "gelu"

    def perceptron(width: int, copies: int = 1) -> FeedForward:
        return feed_forward(hidden, width, gated=gated, activation=activation, bias=style.biases, copies=copies)

    dense = perceptron(width)
    if "experts" not in reader.fields:
        _refuse_expert_fields_without_experts(reader)
        return [dense] * layers
    experts = reader.size("experts", None)
    per_token = reader.size("experts_per_token", None)
    if per_token > experts:
        raise reader.error(
            "experts_per_token", "too_large", f"experts_per_token {per_token} must not exceed experts {experts}"
        )
    first_dense = reader.count("first_dense_layers", 0)
    if first_dense > layers:
        raise reader.error(
            "first_dense_layers", "too_large", f"first_dense_layers {first_dense} must not exceed layers {layers}"
        )
    shared_width = reader.optional_size("shared_expert_ffn_hidden_size")
    sparse = mixture(
        hidden,
        experts,
        per_token,
        perceptron(reader.size("expert_ffn_hidden_size", width), experts),
        shared=perceptron(shared_width) if shared_width else None,
    )
    return [dense] * first_dense + [sparse] * (layers - first_dense)


def _refuse_expert_fields_without_experts(reader: FieldReader) -> None:
    names = ("experts_per_token", "expert_ffn_hidden_size", "shared_expert_ffn_hidden_size", "first_dense_layers")
    reader.read.update(("experts", *names))
    for field in names:
        if field in reader.fields:
            raise reader.error(field, "needs_experts", f"{field} needs experts")


def _max_positions(reader: FieldReader, style: _Style, sequence_length: int | None) -> int | None:
    if "max_position_embeddings" in reader.fields:
        return reader.size("max_position_embeddings", None)
    reader.read.add("max_position_embeddings")
    if style.positions != "learned":
        return None
    positions = sequence_length or ASSUMED_POSITIONS
    origin = "the workload's sequence_length" if sequence_length else "as GPT-3 has"
    reader.assumptions.append(f"architecture.max_position_embeddings left out: {positions}, {origin}")
    return positions


def _refuse_unknown(reader: FieldReader) -> None:
    for field in reader.fields:
        if field not in reader.read:
            raise reader.error(field, "unknown_field", f"{field} is not a field of architecture")


def _block(
    self_attention: Attention,
    part: FeedForward | MixtureOfExperts,
    hidden: int,
    style: _Style,
    *,
    parallel_residual: bool,
) -> Block:
    norms = 1 if parallel_residual else 2
    return Block(
        attention=self_attention,
        feed_forward=part,
        norms=norms,
        norm_parameters=norms * style.norm_size(hidden),
        parallel_residual=parallel_residual,
    )
