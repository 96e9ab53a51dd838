"""OPT: positions offset by two rows, and embeddings that may be narrower than the model."""

from __future__ import annotations

from cost_models.architecture import Linear, ModelArchitecture
from cost_models.block_builders import Heads, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim
from cost_models.hf_config.gpt_block import gpt_block


def read_opt(keys: ConfigKeys) -> ModelArchitecture:
    """OPTForCausalLM."""
    keys.ignore("activation_dropout", "dropout", "init_std", "layerdrop")
    hidden = keys.size("hidden_size", 768)
    heads = keys.size("num_attention_heads", 12)
    bias = keys.flag("enable_bias", True)
    vectors = 2 if keys.flag("layer_norm_elementwise_affine", True) else 0
    width = keys.size("ffn_dim", 3072)
    activation = keys.activation("activation_function", "relu")
    dim = divided_head_dim(keys, hidden, heads)
    block = gpt_block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=bias, out_bias=bias),
        feed_forward(hidden, width, gated=False, activation=activation, bias=bias),
        vectors * hidden,
    )
    vocab = keys.size("vocab_size", 50272)
    positions = keys.size("max_position_embeddings", 2048)
    removed = keys.flag("_remove_final_layer_norm", False)
    final_norm = keys.flag("do_layer_norm_before", True) and not removed
    embedding_width = keys.size_or("word_embed_proj_dim", hidden, "hidden_size")
    projection = hidden * embedding_width if embedding_width != hidden else 0
    return assemble(
        Trunk(
            name="opt",
            model_type="opt",
            hidden=hidden,
            vocab=vocab,
            tied=keys.flag("tie_word_embeddings", True),
            head=Linear("head", embedding_width, vocab, split="column"),
            norm="layernorm",
            positions="learned",
            max_position_embeddings=positions,
            embedding_parameters=vocab * embedding_width,
            position_parameters=(positions + 2) * hidden,
            input_parameters=projection,
            output_parameters=projection,
            final_norm_parameters=vectors * hidden if final_norm else 0,
            assumptions=keys.assumptions,
        ),
        [block] * keys.layers("num_hidden_layers", 12),
    )
