"""GPT-Neo (learned positions, local layers) and GPT-NeoX (rotary positions, parallel residual)."""

from __future__ import annotations

from cost_models.architecture import ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim
from cost_models.hf_config.gpt_block import GptTrunk, assemble_gpt, gpt_block


def read_gpt_neo(keys: ConfigKeys) -> ModelArchitecture:
    """GPTNeoForCausalLM: global and local layers by `attention_types`."""
    keys.ignore(
        "attention_layers", "embed_dropout", "resid_dropout", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    hidden = keys.size("hidden_size", 2048)
    heads = keys.size("num_heads", 16)
    dim = divided_head_dim(keys, hidden, heads, "num_heads")
    layers = keys.layers("num_layers", 24)
    positions = keys.size("max_position_embeddings", 2048)
    window = keys.size("window_size", 256)
    width = keys.size_or("intermediate_size", 4 * hidden, "4 × hidden_size")
    part = feed_forward(
        hidden, width, gated=False, activation=keys.activation("activation_function", "gelu_new"), bias=True
    )
    by_kind = {
        kind: gpt_block(
            attention(hidden, Heads(heads, heads, dim), out_bias=True, extras=AttentionExtras(window=size)),
            part,
            2 * hidden,
        )
        for kind, size in (("global", None), ("local", window))
    }
    gpt = GptTrunk(
        hidden=hidden,
        layers=layers,
        vocab=keys.size("vocab_size", 50257),
        positions="learned",
        max_positions=positions,
        position_rows=positions,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return assemble_gpt(keys, gpt, [by_kind[kind] for kind in _attention_kinds(keys, layers)])


def _attention_kinds(keys: ConfigKeys, layers: int) -> list[str]:
    """`attention_types` ([[["global", "local"], 12]]: repeat the pair 12 times) written out."""
    types = keys.value("attention_types", [[["global", "local"], 12]])
    if types is None:
        types = [[["global", "local"], 12]]
    try:
        kinds = [kind for names, repeats in types for kind in list(names) * min(repeats, layers + 1)]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not all(kind in ("global", "local") for kind in kinds):
        message = f"attention_types must name global or local for each of the {layers} layers"
        raise keys.error("attention_types", "wrong_length", message)
    return kinds


def read_gpt_neox(keys: ConfigKeys) -> ModelArchitecture:
    """GPTNeoXForCausalLM."""
    keys.ignore("rotary_pct", "rotary_emb_base", "bos_token", "eos_token")
    hidden = keys.size("hidden_size", 6144)
    heads = keys.size("num_attention_heads", 64)
    bias = keys.flag("attention_bias", True)
    part = feed_forward(
        hidden,
        keys.size("intermediate_size", 24576),
        gated=False,
        activation=keys.activation("hidden_act", "gelu"),
        bias=True,
    )
    dim = divided_head_dim(keys, hidden, heads)
    block = gpt_block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=bias, out_bias=bias, fused=True),
        part,
        2 * hidden,
        parallel=keys.flag("use_parallel_residual", True),
    )
    gpt = GptTrunk(
        hidden=hidden,
        layers=keys.layers("num_hidden_layers", 44),
        vocab=keys.size("vocab_size", 50432),
        positions="rotary",
        max_positions=keys.size("max_position_embeddings", 2048),
        tied=keys.flag("tie_word_embeddings", False),
    )
    return assemble_gpt(keys, gpt, [block] * gpt.layers)
