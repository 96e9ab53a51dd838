"""BLOOM and MPT, whose positions are ALiBi."""

from __future__ import annotations

from cost_models.architecture import ModelArchitecture
from cost_models.block_builders import Heads, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim
from cost_models.hf_config.gpt_block import GptTrunk, assemble_gpt, gpt_block


def read_bloom(keys: ConfigKeys) -> ModelArchitecture:
    """BloomForCausalLM."""
    keys.ignore(
        "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion", "n_inner",
        "masked_softmax_fusion", "offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
    )  # fmt: skip
    hidden = keys.size("hidden_size", 64)
    heads = keys.size("n_head", 8)
    dim = divided_head_dim(keys, hidden, heads, "n_head")
    block = gpt_block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=True, out_bias=True, fused=True),
        feed_forward(hidden, 4 * hidden, gated=False, activation="gelu_tanh", bias=True),
        2 * hidden,
    )
    gpt = GptTrunk(
        hidden=hidden,
        layers=keys.layers("n_layer", 2),
        vocab=keys.size("vocab_size", 250880),
        positions="alibi",
        max_positions=None,
        tied=keys.flag("tie_word_embeddings", True),
        embedding_norm=True,
    )
    return assemble_gpt(keys, gpt, [block] * gpt.layers)


def read_mpt(keys: ConfigKeys) -> ModelArchitecture:
    """MptForCausalLM, which has ALiBi, no biases and a perceptron of 4 × d_model whatever the config says."""
    keys.ignore(
        "emb_pdrop", "embedding_fraction", "expansion_ratio", "fc_type", "ffn_config", "init_config", "init_device",
        "learned_pos_emb", "logit_scale", "loss_fn", "no_bias", "norm_type", "resid_pdrop", "use_pad_tok_in_ffn",
        "verbose",
    )  # fmt: skip
    nested = keys.nested("attn_config")
    nested.fixed("qk_ln", False)
    nested.fixed("attn_type", "multihead_attention")
    nested.ignore(
        "alibi", "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "clip_qkv", "prefix_lm", "qk_gn",
        "softmax_scale",
    )  # fmt: skip
    nested.refuse_unknown()
    for part, key, used in ((keys, "no_bias", True), (keys, "expansion_ratio", 4), (nested, "alibi", True)):
        if part.fields.get(key, used) != used:
            keys.assumptions.append(
                f"hf_config: {key} {part.fields[key]} has no effect on transformers' MptForCausalLM"
            )
    hidden = keys.size("d_model", 2048)
    heads = keys.size("n_heads", 16)
    dim = divided_head_dim(keys, hidden, heads, "n_heads")
    block = gpt_block(
        attention(hidden, Heads(heads, heads, dim), fused=True),
        feed_forward(hidden, 4 * hidden, gated=False, activation="gelu"),
        hidden,
    )
    gpt = GptTrunk(
        hidden=hidden,
        layers=keys.layers("n_layers", 24),
        vocab=keys.size("vocab_size", 50368),
        positions="alibi",
        max_positions=keys.size("max_seq_len", 2048),
        norm_vectors=1,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return assemble_gpt(keys, gpt, [block] * gpt.layers)
