"""Dense decoders in the shape of Llama."""

from __future__ import annotations

from typing import Final

from cost_models.hf_config.decoder import DecoderFamily
from cost_models.hf_config.windows import alternating, beyond_max_window_layers, every_layer, without_rotary

CAUSAL: Final = (("use_bidirectional_attention", (None, False)),)
NO_BIAS: Final = (("mlp_bias", (False,)), ("lm_head_bias", (False,)))

FAMILIES: Final = {
    "llama": DecoderFamily(
        vocab=32000, hidden=4096, ffn=11008, layers=32, heads=32,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), mlp_bias=("mlp_bias", False),
        inert=("max_sequence_length", "rope_interleaved"),
    ),
    "mistral": DecoderFamily(
        vocab=32000, hidden=4096, ffn=14336, layers=32, heads=32, key_value_heads=8, max_positions=131072,
        windows=every_layer(4096), fixed=(("attention_bias", (False,)), *NO_BIAS),
    ),
    "qwen2": DecoderFamily(
        vocab=151936, hidden=4096, ffn=22016, layers=32, heads=32, key_value_heads=32, max_positions=32768,
        qkv_bias=True, windows=beyond_max_window_layers, inert=("use_mrope", "dual_chunk_attention_config"),
    ),
    "qwen3": DecoderFamily(
        vocab=151936, hidden=4096, ffn=22016, layers=32, heads=32, key_value_heads=32, head_dim=128,
        max_positions=32768, qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), qk_norm=True,
        windows=beyond_max_window_layers,
    ),
    "gemma": DecoderFamily(
        vocab=256000, hidden=3072, ffn=24576, layers=28, heads=16, key_value_heads=16, head_dim=256,
        max_positions=8192, activation="gelu_pytorch_tanh", tied=True,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), inert=("hidden_activation",),
        fixed=CAUSAL,
    ),
    "gemma2": DecoderFamily(
        vocab=256000, hidden=2304, ffn=9216, layers=26, heads=8, key_value_heads=4, head_dim=256, max_positions=8192,
        activation="gelu_pytorch_tanh", activation_key="hidden_activation", tied=True, norms=4,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), windows=alternating(4096, 2),
        has_attention_soft_cap=True, attention_soft_cap=50.0, has_logit_soft_cap=True, logit_soft_cap=30.0,
        inert=("hidden_act", "query_pre_attn_scalar", "sliding_window_size"),
        fixed=CAUSAL,
    ),
    "gemma3_text": DecoderFamily(
        vocab=262208, hidden=2304, ffn=9216, layers=26, heads=8, key_value_heads=4, head_dim=256,
        max_positions=131072, activation="gelu_pytorch_tanh", activation_key="hidden_activation", tied=True, norms=4,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), qk_norm=True,
        windows=alternating(4096, 6, pattern_key="sliding_window_pattern"),
        has_attention_soft_cap=True, has_logit_soft_cap=True,
        inert=("hidden_act", "query_pre_attn_scalar", "rope_local_base_freq"),
        fixed=CAUSAL,
    ),
    "phi": DecoderFamily(
        vocab=51200, hidden=2048, ffn=8192, layers=24, heads=32, activation="gelu_new", gated=False,
        norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True, parallel=True,
        qk_norm=("qk_layernorm", False), qk_norm_span="nominal_head", qk_norm_weights=2,
        inert=("embd_pdrop", "resid_pdrop"),
    ),
    "phi3": DecoderFamily(
        vocab=32064, hidden=3072, ffn=8192, layers=32, heads=32, max_positions=4096, fused_qkv=True,
        fused_gate_up=True, windows=every_layer(None), inert=("embd_pdrop", "resid_pdrop"),
        fixed=(("attention_bias", (False,)), *NO_BIAS),
    ),
    "glm": DecoderFamily(
        vocab=151552, hidden=4096, ffn=13696, layers=40, heads=32, key_value_heads=2, head_dim=128,
        max_positions=131072, qkv_bias=("attention_bias", True), fused_gate_up=True,
    ),
    "glm4": DecoderFamily(
        vocab=151552, hidden=4096, ffn=13696, layers=40, heads=32, key_value_heads=2, head_dim=128,
        max_positions=131072, qkv_bias=("attention_bias", True), fused_gate_up=True, norms=4,
    ),
    "starcoder2": DecoderFamily(
        vocab=49152, hidden=3072, ffn=12288, layers=30, heads=24, key_value_heads=2, max_positions=4096,
        activation="gelu_pytorch_tanh", gated=False, tied=True, norm="layernorm", qkv_bias=("use_bias", True),
        out_bias=("use_bias", True), mlp_bias=("use_bias", True), windows=every_layer(None),
        inert=("activation_function", "attention_softmax_in_fp32", "embedding_dropout", "norm_epsilon",
               "residual_dropout", "scale_attention_softmax_in_fp32", "scale_attn_weights"),
        fixed=(("mlp_type", ("default",)), ("norm_type", ("layer_norm",))),
    ),
    "stablelm": DecoderFamily(
        vocab=50304, hidden=2560, ffn=6912, layers=32, heads=32, key_value_heads=32, own_head_dim=False,
        max_positions=4096, norm="layernorm", qkv_bias=("use_qkv_bias", False),
        parallel=("use_parallel_residual", False), qk_norm=("qk_layernorm", False), qk_norm_span="width",
    ),
    "cohere": DecoderFamily(
        vocab=256000, hidden=8192, ffn=22528, layers=40, heads=64, max_positions=8192, tied=True, norm="layernorm",
        norm_weights=1, qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), parallel=True,
        qk_norm=("use_qk_norm", False), qk_norm_span="width",
        inert=("logit_scale", "model_max_length", "use_embedding_sharing", "use_parallel_embedding"),
        fixed=(("use_gated_activation", (True,)), ("use_parallel_block", (True,))),
    ),
    "cohere2": DecoderFamily(
        vocab=256000, hidden=8192, ffn=22528, layers=40, heads=64, max_positions=8192, tied=True,
        norm="layernorm", norm_weights=1, qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
        parallel=True, windows=alternating(4096, 4, pattern_key="sliding_window_pattern"),
        inert=("logit_scale", "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
               "model_max_length", "use_embedding_sharing", "use_parallel_embedding"),
        fixed=(("use_gated_activation", (True,)), ("use_parallel_block", (True,)), ("use_qk_norm", (False,))),
    ),
    "olmo": DecoderFamily(
        vocab=50304, hidden=4096, ffn=11008, layers=32, heads=32, norm="layernorm", norm_weights=0,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), inert=("clip_qkv",),
    ),
    "olmo2": DecoderFamily(
        vocab=50304, hidden=4096, ffn=11008, layers=32, heads=32, qk_norm=True, qk_norm_span="width",
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), inert=("clip_qkv",),
    ),
    "granite": DecoderFamily(
        vocab=32000, hidden=4096, ffn=11008, layers=32, heads=32, qkv_bias=("attention_bias", False),
        out_bias=("attention_bias", False), mlp_bias=("mlp_bias", False),
        inert=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    ),
    "seed_oss": DecoderFamily(
        vocab=155136, hidden=4096, ffn=27648, layers=64, heads=80, key_value_heads=8, head_dim=128,
        max_positions=524288, qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False), inert=("residual_dropout",),
    ),
    "smollm3": DecoderFamily(
        vocab=128256, hidden=2048, ffn=11008, layers=36, heads=16, key_value_heads=4, max_positions=32768, tied=True,
        qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), mlp_bias=("mlp_bias", False),
        windows=without_rotary,
    ),
    "nemotron": DecoderFamily(
        vocab=256000, hidden=6144, ffn=24576, layers=32, heads=48, max_positions=4096, activation="relu2",
        gated=False, norm="layernorm", qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
        mlp_bias=("mlp_bias", False), inert=("norm_eps", "rope_percent"),
    ),
    "internlm2": DecoderFamily(
        # Remote code: InternLM2ForCausalLM and its InternLM2Config, as internlm/internlm2-7b carries them.
        vocab=103168, hidden=4096, ffn=11008, layers=32, heads=32, own_head_dim=False, fused_qkv=True,
        qkv_bias=("bias", True), out_bias=("bias", True),
    ),
}  # fmt: skip
"""`model_type` to its family."""
