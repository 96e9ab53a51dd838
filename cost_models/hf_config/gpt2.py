"""GPT-2, GPT-BigCode (StarCoder) and GPT-J, which share their key names."""

from __future__ import annotations

from cost_models.architecture import ModelArchitecture
from cost_models.block_builders import Heads, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim
from cost_models.hf_config.gpt_block import GptTrunk, assemble_gpt, gpt_block

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""transformers' attribute_map of GPT-2, GPT-J and GPT-BigCode: other names of the same keys."""
GPT2_INERT = (
    "attn_pdrop", "embd_pdrop", "n_ctx", "reorder_and_upcast_attn", "resid_pdrop", "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj",
)  # fmt: skip


def read_gpt2(keys: ConfigKeys) -> ModelArchitecture:
    """GPT2LMHeadModel."""
    keys.ignore(*GPT2_INERT)
    return _gpt2(keys, activation="gelu_new", multi_query=False)


def read_gpt_bigcode(keys: ConfigKeys) -> ModelArchitecture:
    """GPTBigCodeForCausalLM: GPT-2 with one key and value head for all queries."""
    keys.ignore(
        *GPT2_INERT, "attention_softmax_in_fp32", "inference_runner", "max_batch_size", "max_sequence_length",
        "pad_key_length", "pre_allocate_kv_cache", "runner_max_sequence_length", "scale_attention_softmax_in_fp32",
        "validate_runner_input", "num_key_value_heads",
    )  # fmt: skip
    return _gpt2(keys, activation="gelu_pytorch_tanh", multi_query=keys.flag("multi_query", True))


def _gpt2(keys: ConfigKeys, *, activation: str, multi_query: bool) -> ModelArchitecture:
    keys.fixed("add_cross_attention", False)
    hidden = keys.size("n_embd", 768)
    heads = keys.size("n_head", 12)
    dim = divided_head_dim(keys, hidden, heads, "n_head")
    positions = keys.size("n_positions", 1024)
    block = gpt_block(
        attention(hidden, Heads(heads, 1 if multi_query else heads, dim), qkv_bias=True, out_bias=True, fused=True),
        feed_forward(
            hidden,
            keys.size_or("n_inner", 4 * hidden, "4 × n_embd"),
            gated=False,
            activation=keys.activation("activation_function", activation),
            bias=True,
        ),
        2 * hidden,
    )
    gpt = GptTrunk(
        hidden=hidden,
        layers=keys.layers("n_layer", 12),
        vocab=keys.size("vocab_size", 50257),
        positions="learned",
        max_positions=positions,
        position_rows=positions,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return assemble_gpt(keys, gpt, [block] * gpt.layers)


def read_gptj(keys: ConfigKeys) -> ModelArchitecture:
    """GPTJForCausalLM."""
    keys.ignore(*GPT2_INERT, "rotary", "rotary_dim")
    hidden = keys.size("n_embd", 4096)
    heads = keys.size("n_head", 16)
    dim = divided_head_dim(keys, hidden, heads, "n_head")
    width = keys.size_or("n_inner", 4 * hidden, "4 × n_embd")
    activation = keys.activation("activation_function", "gelu_new")
    block = gpt_block(
        attention(hidden, Heads(heads, heads, dim)),
        feed_forward(hidden, width, gated=False, activation=activation, bias=True),
        2 * hidden,
        norms=1,
        parallel=True,
    )
    gpt = GptTrunk(
        hidden=hidden,
        layers=keys.layers("n_layer", 28),
        vocab=keys.size("vocab_size", 50400),
        positions="rotary",
        max_positions=keys.size("n_positions", 2048),
        tied=keys.flag("tie_word_embeddings", False),
        head_bias=True,
    )
    return assemble_gpt(keys, gpt, [block] * gpt.layers)
