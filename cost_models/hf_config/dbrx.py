"""DBRX: its attention and feed-forward settings are nested configs."""

from __future__ import annotations

from cost_models.architecture import Block, ModelArchitecture
from cost_models.block_builders import Heads, Trunk, assemble, attention, feed_forward, mixture
from cost_models.hf_config.config_keys import ACTIVATIONS, ConfigKeys
from cost_models.hf_config.decoder import divided_head_dim
from cost_models.hf_config.expert_families import experts_per_token


def read_dbrx(keys: ConfigKeys) -> ModelArchitecture:
    """DbrxForCausalLM."""
    keys.ignore("emb_pdrop", "resid_pdrop")
    hidden = keys.size("d_model", 2048)
    heads = keys.size("n_heads", 16)
    attn = keys.nested("attn_config")
    key_value = attn.size("kv_n_heads", 1)
    attn.ignore("attn_pdrop", "clip_qkv")
    attn.refuse_unknown()
    if heads % key_value:
        raise attn.error("kv_n_heads", "not_divisible", f"kv_n_heads {key_value} must divide n_heads {heads}")
    keys.fixed("num_key_value_heads", key_value)
    ffn = keys.nested("ffn_config")
    experts = ffn.size("moe_num_experts", 4)
    per_token = experts_per_token(ffn, "moe_top_k", 1, experts)
    routed = feed_forward(
        hidden, ffn.size("ffn_hidden_size", 3584), gated=True, activation=_activation(ffn), copies=experts
    )
    ffn.ignore(
        "hidden_size", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment"
    )
    ffn.refuse_unknown()
    keys.fixed("tie_word_embeddings", False)
    block = Block(
        attention=attention(
            hidden, Heads(heads, key_value, divided_head_dim(keys, hidden, heads, "n_heads")), fused=True
        ),
        feed_forward=mixture(hidden, experts, per_token, routed),
        norms=2,
        norm_parameters=2 * hidden,
    )
    return assemble(
        Trunk(
            name="dbrx",
            model_type="dbrx",
            hidden=hidden,
            vocab=keys.size("vocab_size", 32000),
            tied=False,
            norm="layernorm",
            positions="rotary",
            max_position_embeddings=keys.size("max_seq_len", 2048),
            final_norm_parameters=hidden,
            assumptions=keys.assumptions,
        ),
        [block] * keys.layers("n_layers", 24),
    )


def _activation(ffn: ConfigKeys) -> str:
    raw = ffn.value("ffn_act_fn", {"name": "silu"})
    name = (raw or {"name": "silu"}).get("name") if isinstance(raw, dict | None) else None
    if name not in ACTIVATIONS:
        raise ffn.unsupported("ffn_act_fn", "unsupported_activation", f"ffn_act_fn {raw!r} is not known")
    return ACTIVATIONS[name]
