"""The text part of Llama 4: experts in every n-th layer, chunked attention where positions are rotary."""

from __future__ import annotations

from cost_models.architecture import Block, FeedForward, ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, Trunk, assemble, attention, feed_forward, mixture
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import read_heads
from cost_models.hf_config.expert_families import experts_per_token
from cost_models.hf_config.windows import by_layer_types, rotary_layers, window_size


def read_llama4_text(keys: ConfigKeys) -> ModelArchitecture:
    """Llama4ForCausalLM."""
    keys.ignore(
        "attn_scale",
        "attn_temperature_tuning",
        "floor_scale",
        "for_llm_compressor",
        "head_dim",
        "output_router_logits",
    )
    hidden = keys.size("hidden_size", 5120)
    layers = keys.layers("num_hidden_layers", 48)
    query, key_value = read_heads(keys, 40, 8)
    heads = Heads(query, key_value, keys.size("head_dim", 128))
    bias = keys.flag("attention_bias", False)
    activation = keys.activation("hidden_act", "silu")

    def perceptron(width: int, copies: int = 1) -> FeedForward:
        return feed_forward(hidden, width, gated=True, activation=activation, copies=copies)

    sparse_layers = _sparse_layers(keys, layers)
    # A model without sparse layers (MobileLLM-R1) says 0 experts.
    experts = keys.size("num_local_experts", 16) if sparse_layers else keys.count("num_local_experts", 16)
    per_token = experts_per_token(keys, "num_experts_per_tok", 1, experts)
    width = keys.size("intermediate_size", 8192)
    sparse = mixture(hidden, experts, per_token, perceptron(width, experts), shared=perceptron(width))
    dense = perceptron(keys.size("intermediate_size_mlp", 16384))
    rotary = rotary_layers(keys, layers)
    windows = by_layer_types(keys, layers, window_size(keys, "attention_chunk_size", 8192), rotary)
    qk_norm = keys.flag("use_qk_norm", True)  # L2 norms without weights, on rotary layers
    blocks = [
        Block(
            attention=attention(
                hidden,
                heads,
                qkv_bias=bias,
                out_bias=bias,
                extras=AttentionExtras(window=windows[i], norms=2 if qk_norm and rotary[i] else 0),
            ),
            feed_forward=sparse if i in sparse_layers else dense,
            norms=2,
            norm_parameters=2 * hidden,
        )
        for i in range(layers)
    ]
    return assemble(
        Trunk(
            name="llama4_text",
            model_type="llama4_text",
            hidden=hidden,
            vocab=keys.size("vocab_size", 202048),
            tied=keys.flag("tie_word_embeddings", False),
            norm="rmsnorm",
            positions="rotary",
            max_position_embeddings=keys.size("max_position_embeddings", 131072),
            final_norm_parameters=hidden,
            assumptions=keys.assumptions,
        ),
        blocks,
    )


def _sparse_layers(keys: ConfigKeys, layers: int) -> set[int]:
    listed = keys.integers("moe_layers")
    if listed is not None:
        keys.ignore("interleave_moe_layer_step")
        return set(listed) & set(range(layers))
    step = keys.size("interleave_moe_layer_step", 1)
    return set(range(step - 1, layers, step))
