"""DeepSeek-V2, DeepSeek-V3 and Kimi K2: multi-head latent attention and fine-grained experts.

Source: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437); weights as transformers' classes hold them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import Block, FeedForward, LatentAttention, ModelArchitecture
from cost_models.block_builders import Trunk, assemble, feed_forward, latent_attention, mixture
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import read_heads
from cost_models.hf_config.expert_families import experts_per_token, first_layers_dense


@dataclass(frozen=True, slots=True)
class LatentFamily:
    """Defaults of one `model_type` (transformers 5.24)."""

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    key_value_heads: int | None
    max_positions: int
    experts: int
    shared_experts: int
    experts_per_token: int | None
    """None: there is no default."""
    expert_ffn: int
    first_dense: int
    has_mlp_bias: bool
    groups: int | None
    """None: a token's experts may lie anywhere."""
    groups_per_token: int | None


DEEPSEEK_V2 = LatentFamily(
    vocab=102400, hidden=4096, ffn=11008, layers=32, heads=32, key_value_heads=None, max_positions=2048, experts=64,
    shared_experts=2, experts_per_token=None, expert_ffn=1407, first_dense=0, has_mlp_bias=True,
    groups=None, groups_per_token=None,
)  # fmt: skip
DEEPSEEK_V3 = LatentFamily(
    vocab=129280, hidden=7168, ffn=18432, layers=61, heads=128, key_value_heads=128, max_positions=4096, experts=256,
    shared_experts=1, experts_per_token=8, expert_ffn=2048, first_dense=3, has_mlp_bias=False,
    groups=8, groups_per_token=4,
)  # fmt: skip


def read_deepseek_v2(keys: ConfigKeys) -> ModelArchitecture:
    """DeepseekV2ForCausalLM."""
    return _read(DEEPSEEK_V2, keys)


def read_deepseek_v3(keys: ConfigKeys) -> ModelArchitecture:
    """DeepseekV3ForCausalLM; Kimi K2 is the same class under another `model_type`."""
    return _read(DEEPSEEK_V3, keys)


def _read(family: LatentFamily, keys: ConfigKeys) -> ModelArchitecture:
    keys.ignore(
        "aux_loss_alpha", "ep_size", "head_dim", "norm_topk_prob", "num_mtp_layers",
        "num_nextn_predict_layers", "qk_head_dim", "rope_interleave", "routed_scaling_factor", "scoring_func",
        "seq_aux", "topk_method",
    )  # fmt: skip
    keys.fixed("moe_layer_freq", 1)
    hidden = keys.size("hidden_size", family.hidden)
    layers = keys.layers("num_hidden_layers", family.layers)
    vocab = keys.size("vocab_size", family.vocab)
    heads, _ = read_heads(keys, family.heads, family.key_value_heads)
    attention = latent_attention(
        hidden,
        heads,
        LatentAttention(
            q_rank=keys.optional_size("q_lora_rank", 1536),
            kv_rank=keys.size("kv_lora_rank", 512),
            rope_head_dim=keys.size("qk_rope_head_dim", 64),
        ),
        nope_head_dim=keys.size("qk_nope_head_dim", 128),
        value_head_dim=keys.size("v_head_dim", 128),
        bias=keys.flag("attention_bias", False),
    )
    activation = keys.activation("hidden_act", "silu")
    bias = keys.flag("mlp_bias", False) if family.has_mlp_bias else False

    def perceptron(width: int, copies: int = 1, *, bias: bool = bias) -> FeedForward:
        return feed_forward(hidden, width, gated=True, activation=activation, bias=bias, copies=copies)

    experts = keys.size("n_routed_experts", family.experts)
    width = keys.size("moe_intermediate_size", family.expert_ffn)
    shared_experts = keys.size("n_shared_experts", family.shared_experts)
    sparse = mixture(
        hidden,
        experts,
        experts_per_token(keys, "num_experts_per_tok", family.experts_per_token, experts),
        perceptron(width, experts, bias=False),
        shared=perceptron(width * shared_experts),
        groups=keys.optional_size("n_group", family.groups) or 1,
        groups_per_token=keys.optional_size("topk_group", family.groups_per_token) or 1,
    )
    dense = perceptron(keys.size("intermediate_size", family.ffn))
    first_dense = first_layers_dense(keys, "first_k_dense_replace", family.first_dense, layers)
    parts = [dense] * first_dense + [sparse] * (layers - first_dense)
    return assemble(
        Trunk(
            name=keys.model_type,
            model_type=keys.model_type,
            hidden=hidden,
            vocab=vocab,
            tied=keys.flag("tie_word_embeddings", False),
            norm="rmsnorm",
            positions="rotary",
            max_position_embeddings=keys.size("max_position_embeddings", family.max_positions),
            final_norm_parameters=hidden,
            assumptions=keys.assumptions,
        ),
        [Block(attention=attention, feed_forward=part, norms=2, norm_parameters=2 * hidden) for part in parts],
    )
