"""Decoders with GPT-2's key names or block: learned or no positions, biases, plain perceptrons."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import Attention, Block, FeedForward, Linear, ModelArchitecture
from cost_models.block_builders import AttentionExtras, Heads, PositionKind, Trunk, assemble, attention, feed_forward
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim

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


@dataclass(frozen=True, slots=True)
class _Gpt:
    """What the families of this module differ in."""

    hidden: int
    layers: int
    vocab: int
    positions: PositionKind
    max_positions: int | None
    tied: bool
    norm_vectors: int = 2
    """Vectors of one norm: weight and bias."""
    final_norm: bool = True
    position_rows: int = 0
    embedding_norm: bool = False
    head_bias: bool = False


def _gpt(keys: ConfigKeys, gpt: _Gpt, blocks: list[Block]) -> ModelArchitecture:
    norm = gpt.norm_vectors * gpt.hidden
    return assemble(
        Trunk(
            name=keys.model_type,
            model_type=keys.model_type,
            hidden=gpt.hidden,
            vocab=gpt.vocab,
            tied=gpt.tied,
            norm="layernorm",
            positions=gpt.positions,
            max_position_embeddings=gpt.max_positions,
            position_parameters=gpt.position_rows * gpt.hidden,
            input_parameters=norm if gpt.embedding_norm else 0,
            final_norm_parameters=norm if gpt.final_norm else 0,
            output_parameters=gpt.vocab if gpt.head_bias else 0,
            assumptions=keys.assumptions,
        ),
        blocks,
    )


def _block(attention: Attention, part: FeedForward, norm: int, *, norms: int = 2, parallel: bool = False) -> Block:
    return Block(
        attention=attention,
        feed_forward=part,
        norms=norms,
        norm_parameters=norms * norm,
        parallel_residual=parallel,
    )


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
    block = _block(
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
    gpt = _Gpt(
        hidden=hidden,
        layers=keys.layers("n_layer", 12),
        vocab=keys.size("vocab_size", 50257),
        positions="learned",
        max_positions=positions,
        position_rows=positions,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return _gpt(keys, gpt, [block] * gpt.layers)


def read_gptj(keys: ConfigKeys) -> ModelArchitecture:
    """GPTJForCausalLM."""
    keys.ignore(*GPT2_INERT, "rotary", "rotary_dim")
    hidden = keys.size("n_embd", 4096)
    heads = keys.size("n_head", 16)
    dim = divided_head_dim(keys, hidden, heads, "n_head")
    width = keys.size_or("n_inner", 4 * hidden, "4 × n_embd")
    activation = keys.activation("activation_function", "gelu_new")
    block = _block(
        attention(hidden, Heads(heads, heads, dim)),
        feed_forward(hidden, width, gated=False, activation=activation, bias=True),
        2 * hidden,
        norms=1,
        parallel=True,
    )
    gpt = _Gpt(
        hidden=hidden,
        layers=keys.layers("n_layer", 28),
        vocab=keys.size("vocab_size", 50400),
        positions="rotary",
        max_positions=keys.size("n_positions", 2048),
        tied=keys.flag("tie_word_embeddings", False),
        head_bias=True,
    )
    return _gpt(keys, gpt, [block] * gpt.layers)


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
        kind: _block(
            attention(hidden, Heads(heads, heads, dim), out_bias=True, extras=AttentionExtras(window=size)),
            part,
            2 * hidden,
        )
        for kind, size in (("global", None), ("local", window))
    }
    gpt = _Gpt(
        hidden=hidden,
        layers=layers,
        vocab=keys.size("vocab_size", 50257),
        positions="learned",
        max_positions=positions,
        position_rows=positions,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return _gpt(keys, gpt, [by_kind[kind] for kind in _attention_kinds(keys, layers)])


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
    block = _block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=bias, out_bias=bias, fused=True),
        part,
        2 * hidden,
        parallel=keys.flag("use_parallel_residual", True),
    )
    gpt = _Gpt(
        hidden=hidden,
        layers=keys.layers("num_hidden_layers", 44),
        vocab=keys.size("vocab_size", 50432),
        positions="rotary",
        max_positions=keys.size("max_position_embeddings", 2048),
        tied=keys.flag("tie_word_embeddings", False),
    )
    return _gpt(keys, gpt, [block] * gpt.layers)


def read_bloom(keys: ConfigKeys) -> ModelArchitecture:
    """BloomForCausalLM."""
    keys.ignore(
        "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion", "n_inner",
        "masked_softmax_fusion", "offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
    )  # fmt: skip
    hidden = keys.size("hidden_size", 64)
    heads = keys.size("n_head", 8)
    dim = divided_head_dim(keys, hidden, heads, "n_head")
    block = _block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=True, out_bias=True, fused=True),
        feed_forward(hidden, 4 * hidden, gated=False, activation="gelu_tanh", bias=True),
        2 * hidden,
    )
    gpt = _Gpt(
        hidden=hidden,
        layers=keys.layers("n_layer", 2),
        vocab=keys.size("vocab_size", 250880),
        positions="alibi",
        max_positions=None,
        tied=keys.flag("tie_word_embeddings", True),
        embedding_norm=True,
    )
    return _gpt(keys, gpt, [block] * gpt.layers)


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
    hidden = keys.size("d_model", 2048)
    heads = keys.size("n_heads", 16)
    dim = divided_head_dim(keys, hidden, heads, "n_heads")
    block = _block(
        attention(hidden, Heads(heads, heads, dim), fused=True),
        feed_forward(hidden, 4 * hidden, gated=False, activation="gelu"),
        hidden,
    )
    gpt = _Gpt(
        hidden=hidden,
        layers=keys.layers("n_layers", 24),
        vocab=keys.size("vocab_size", 50368),
        positions="alibi",
        max_positions=keys.size("max_seq_len", 2048),
        norm_vectors=1,
        tied=keys.flag("tie_word_embeddings", True),
    )
    return _gpt(keys, gpt, [block] * gpt.layers)


def read_opt(keys: ConfigKeys) -> ModelArchitecture:
    """OPTForCausalLM: positions offset by two rows, embeddings that may be narrower than the model."""
    keys.ignore("activation_dropout", "dropout", "init_std", "layerdrop")
    hidden = keys.size("hidden_size", 768)
    heads = keys.size("num_attention_heads", 12)
    bias = keys.flag("enable_bias", True)
    vectors = 2 if keys.flag("layer_norm_elementwise_affine", True) else 0
    width = keys.size("ffn_dim", 3072)
    activation = keys.activation("activation_function", "relu")
    dim = divided_head_dim(keys, hidden, heads)
    block = _block(
        attention(hidden, Heads(heads, heads, dim), qkv_bias=bias, out_bias=bias),
        feed_forward(hidden, width, gated=False, activation=activation, bias=bias),
        vectors * hidden,
    )
    vocab = keys.size("vocab_size", 50272)
    positions = keys.size("max_position_embeddings", 2048)
    before = keys.flag("do_layer_norm_before", True)
    final_norm = before and not keys.flag("_remove_final_layer_norm", False)
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
