"""Falcon in its three forms: 7B (multi-query), 40B and 180B (new decoder architecture), RW (ALiBi, sequential)."""

from __future__ import annotations

from cost_models.architecture import Block, ModelArchitecture
from cost_models.block_builders import Heads, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim


def read_falcon(keys: ConfigKeys) -> ModelArchitecture:
    """FalconForCausalLM."""
    keys.ignore("apply_residual_connection_post_layernorm", "n_inner")
    hidden = keys.size("hidden_size", 4544)
    layers = keys.layers("num_hidden_layers", 32)
    vocab = keys.size("vocab_size", 65024)
    bias = keys.flag("bias", False)
    new_architecture = keys.flag("new_decoder_architecture", False)
    parallel = keys.flag("parallel_attn", True)
    norms = _norms(keys, parallel=parallel, new_architecture=new_architecture)
    width = keys.size_or("ffn_hidden_size", 4 * hidden, "4 × hidden_size")
    block = Block(
        attention=attention(
            hidden, _heads(keys, hidden, new_architecture=new_architecture), qkv_bias=bias, out_bias=bias, fused=True
        ),
        feed_forward=feed_forward(
            hidden, width, gated=False, activation=keys.activation("activation", "gelu"), bias=bias
        ),
        norms=norms,
        norm_parameters=norms * 2 * hidden,
        parallel_residual=parallel or new_architecture,
    )
    return assemble(
        Trunk(
            name="falcon",
            model_type="falcon",
            hidden=hidden,
            vocab=vocab,
            tied=keys.flag("tie_word_embeddings", True),
            norm="layernorm",
            positions="alibi" if keys.flag("alibi", False) else "rotary",
            max_position_embeddings=keys.size("max_position_embeddings", 2048),
            final_norm_parameters=2 * hidden,
            assumptions=keys.assumptions,
        ),
        [block] * layers,
    )


def _heads(keys: ConfigKeys, hidden: int, *, new_architecture: bool) -> Heads:
    """Only the new architecture looks at `num_kv_heads`; else one pair for all heads, or one for each."""
    query = keys.size("num_attention_heads", 71)
    dim = divided_head_dim(keys, hidden, query)
    multi_query = keys.flag("multi_query", True)
    grouped = keys.size_or("num_kv_heads", query, "as many as attention heads")
    key_value = grouped if new_architecture else 1 if multi_query else query
    if query % key_value:
        message = f"num_kv_heads {key_value} must divide num_attention_heads {query}"
        raise keys.error("num_kv_heads", "not_divisible", message)
    return Heads(query, key_value, dim)


def _norms(keys: ConfigKeys, *, parallel: bool, new_architecture: bool) -> int:
    listed = keys.optional_size("num_ln_in_parallel_attn")
    if not parallel:
        return 2
    return 2 if (listed or (2 if new_architecture else 1)) == 2 else 1
