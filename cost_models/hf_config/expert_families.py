"""Decoders in the shape of Llama whose feed-forward part is a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cost_models.architecture import FeedForward, MixtureOfExperts
from cost_models.block_builders import feed_forward, mixture
from cost_models.hf_config.config_keys import ConfigKeys
from cost_models.hf_config.decoder import DecoderFamily, Shape
from cost_models.hf_config.windows import (
    alternating,
    even_below_max_window_layers,
    every_layer,
    every_layer_if_switched_on,
)

Parts = Sequence[FeedForward | MixtureOfExperts]


def experts_per_token(keys: ConfigKeys, key: str, default: int | None, experts: int) -> int:
    """Experts that a token uses, at most all of them; without experts the key has no meaning and may be anything."""
    if not experts:
        keys.ignore(key)
        return 0
    per_token = keys.size(key, default)
    if per_token > experts:
        raise keys.error(key, "too_large", f"{key} {per_token} must not exceed the {experts} experts")
    return per_token


def first_layers_dense(keys: ConfigKeys, key: str, default: int, layers: int) -> int:
    """How many layers at the front have no experts; a model cut short may have fewer layers than that."""
    return min(keys.count(key, default), layers)


def _gated(shape: Shape, width: int, copies: int = 1, *, bias: bool = False) -> FeedForward:
    return feed_forward(shape.hidden, width, gated=True, activation=shape.activation, bias=bias, copies=copies)


def _mixtral(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.size("num_local_experts", 8)
    per_token = experts_per_token(keys, "num_experts_per_tok", 2, experts)
    return [mixture(shape.hidden, experts, per_token, _gated(shape, shape.ffn, experts))] * shape.layers


def _phimoe(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.size("num_local_experts", 16)
    per_token = experts_per_token(keys, "num_experts_per_tok", 2, experts)
    return [mixture(shape.hidden, experts, per_token, _gated(shape, shape.ffn, experts))] * shape.layers


def _olmoe(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.size("num_experts", 64)
    per_token = experts_per_token(keys, "num_experts_per_tok", 8, experts)
    return [mixture(shape.hidden, experts, per_token, _gated(shape, shape.ffn, experts))] * shape.layers


def _gpt_oss(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.size("num_local_experts", 128)
    per_token = experts_per_token(keys, "num_experts_per_tok", 4, experts)
    routed = _gated(shape, shape.ffn, experts, bias=True)
    return [mixture(shape.hidden, experts, per_token, routed, router_bias=True)] * shape.layers


def _qwen2_moe(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.count("num_experts", 60)
    width = keys.size("moe_intermediate_size", 1408)
    shared = _gated(shape, keys.size("shared_expert_intermediate_size", 5632))
    per_token = experts_per_token(keys, "num_experts_per_tok", 4, experts)
    if not experts:
        return _sparse_steps(keys, shape, None)
    routed = _gated(shape, width, experts)
    return _sparse_steps(
        keys, shape, mixture(shape.hidden, experts, per_token, routed, shared=shared, shared_gate=True)
    )


def _qwen3_moe(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.count("num_experts", 128)
    width = keys.size("moe_intermediate_size", 768)
    per_token = experts_per_token(keys, "num_experts_per_tok", 8, experts)
    if not experts:
        return _sparse_steps(keys, shape, None)
    return _sparse_steps(keys, shape, mixture(shape.hidden, experts, per_token, _gated(shape, width, experts)))


def _sparse_steps(keys: ConfigKeys, shape: Shape, sparse: MixtureOfExperts | None) -> Parts:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    step = keys.size("decoder_sparse_step", 1)
    dense_layers = set(keys.integers("mlp_only_layers") or ())
    dense = _gated(shape, shape.ffn)
    if sparse is None:
        return [dense] * shape.layers
    return [sparse if i not in dense_layers and (i + 1) % step == 0 else dense for i in range(shape.layers)]


def _glm4_moe(keys: ConfigKeys, shape: Shape) -> Parts:
    experts = keys.size("n_routed_experts", 128)
    per_token = experts_per_token(keys, "num_experts_per_tok", 8, experts)
    width = keys.size("moe_intermediate_size", 1408)
    shared = _gated(shape, width * keys.size("n_shared_experts", 1))
    dense = first_layers_dense(keys, "first_k_dense_replace", 1, shape.layers)
    sparse = mixture(shape.hidden, experts, per_token, _gated(shape, width, experts), shared=shared)
    return [_gated(shape, shape.ffn)] * dense + [sparse] * (shape.layers - dense)


ROUTER_KEYS: Final = ("norm_topk_prob", "output_router_logits")

FAMILIES: Final = {
    "mixtral": DecoderFamily(
        vocab=32000, hidden=4096, ffn=14336, layers=32, heads=32, key_value_heads=8, max_positions=131072,
        windows=every_layer(None), feed_forwards=_mixtral,
    ),
    "phimoe": DecoderFamily(
        vocab=32064, hidden=4096, ffn=6400, layers=32, heads=32, key_value_heads=8, max_positions=131072,
        norm="layernorm", qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
        head_bias=("lm_head_bias", False), windows=every_layer(None), feed_forwards=_phimoe,
        inert=("input_jitter_noise",),
    ),
    "olmoe": DecoderFamily(
        vocab=50304, hidden=2048, ffn=2048, layers=16, heads=16, max_positions=4096, qk_norm=True,
        qk_norm_span="hidden", qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
        feed_forwards=_olmoe, inert=("clip_qkv", *ROUTER_KEYS),
    ),
    "gpt_oss": DecoderFamily(
        vocab=201088, hidden=2880, ffn=2880, layers=36, heads=64, key_value_heads=8, head_dim=64,
        max_positions=131072, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), sinks=True,
        windows=alternating(128, 2), feed_forwards=_gpt_oss,
        inert=("experts_per_token", "initial_context_length", "swiglu_alpha", "swiglu_limit"),
    ),
    "qwen2_moe": DecoderFamily(
        vocab=151936, hidden=2048, ffn=5632, layers=24, heads=16, key_value_heads=16, max_positions=32768,
        qkv_bias=("qkv_bias", True), windows=even_below_max_window_layers, feed_forwards=_qwen2_moe,
        inert=("use_mrope", *ROUTER_KEYS),
    ),
    "qwen3_moe": DecoderFamily(
        vocab=151936, hidden=2048, ffn=6144, layers=24, heads=32, key_value_heads=4, max_positions=32768,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), qk_norm=True,
        windows=every_layer_if_switched_on, feed_forwards=_qwen3_moe, inert=ROUTER_KEYS,
        fixed=(("shared_expert_intermediate_size", (0, None)), ("qkv_bias", (False,)), ("use_qk_norm", (True,))),
    ),
    "glm4_moe": DecoderFamily(
        vocab=151552, hidden=4096, ffn=10944, layers=46, heads=96, key_value_heads=8, floor_head_dim=True,
        max_positions=131072, qkv_bias=("attention_bias", False), qk_norm=("use_qk_norm", False),
        feed_forwards=_glm4_moe,
        inert=("n_group", "topk_group", "routed_scaling_factor", "num_nextn_predict_layers", "num_mtp_layers",
               *ROUTER_KEYS),
    ),
}  # fmt: skip
"""`model_type` to its family."""
