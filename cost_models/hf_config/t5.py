"""T5: an encoder and a decoder with relative position biases in the first block of each."""

from __future__ import annotations

from cost_models.architecture import Attention, Block, FeedForward, ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ACTIVATIONS, ConfigKeys


def read_t5(keys: ConfigKeys) -> ModelArchitecture:
    """T5ForConditionalGeneration, whose head is always the embedding matrix (transformers 5)."""
    keys.ignore(
        "dense_act_fn", "dropout_rate", "initializer_factor", "is_gated_act", "n_positions",
        "relative_attention_max_distance", "scale_decoder_outputs",
    )  # fmt: skip
    hidden = keys.size("d_model", 512)
    heads = keys.size("num_heads", 8)
    shape = Heads(heads, heads, keys.size("d_kv", 64))
    relative_bias = keys.size("relative_attention_num_buckets", 32) * heads
    part = _feed_forward(keys, hidden, keys.size("d_ff", 2048))
    layers = keys.layers("num_layers", 6)
    decoder_layers = keys.size_or("num_decoder_layers", layers, "as many as encoder layers")

    def self_attention(index: int, *, causal: bool) -> Attention:
        extras = AttentionExtras(causal=causal, other_parameters=relative_bias if index == 0 else 0)
        return attention(hidden, shape, extras=extras)

    cross = attention(hidden, shape, extras=AttentionExtras(causal=False))
    encoder = [
        Block(
            attention=self_attention(i, causal=False),
            feed_forward=part,
            norms=2,
            norm_parameters=2 * hidden,
            encoder=True,
        )
        for i in range(layers)
    ]
    decoder = [
        Block(
            attention=self_attention(i, causal=True),
            feed_forward=part,
            norms=3,
            norm_parameters=3 * hidden,
            cross_attention=cross,
        )
        for i in range(decoder_layers)
    ]
    if keys.fields.get("tie_word_embeddings") is False:
        keys.assumptions.append("hf_config.tie_word_embeddings false: transformers' T5 ties the head all the same")
    return assemble(
        Trunk(
            name="t5",
            model_type="t5",
            hidden=hidden,
            vocab=keys.size("vocab_size", 32128),
            tied=True,
            norm="rmsnorm",
            positions="none",
            max_position_embeddings=None,
            final_norm_parameters=2 * hidden,
            assumptions=keys.assumptions,
        ),
        [*encoder, *decoder],
    )


def _feed_forward(keys: ConfigKeys, hidden: int, width: int) -> FeedForward:
    """`relu` or `gated-gelu`, where gated means three matrices and gelu is the tanh form."""
    projection = keys.text("feed_forward_proj", "relu")
    gated = projection.startswith("gated-")
    name = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    if name not in ACTIVATIONS:
        message = f"feed_forward_proj {projection!r} is not known; known: {sorted(ACTIVATIONS)}, with gated- before"
        raise keys.unsupported("feed_forward_proj", "unsupported_activation", message)
    return feed_forward(hidden, width, gated=gated, activation=ACTIVATIONS[name])
