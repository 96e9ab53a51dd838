"""Small configs of every model type, with the switches of its config class thrown one by one and all at once."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

DECODER: Config = {
    "vocab_size": 384, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 5, "num_attention_heads": 6,
    "num_key_value_heads": 2, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2: Config = {"vocab_size": 384, "n_embd": 96, "n_layer": 3, "n_head": 6, "n_positions": 72}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
BIASED = {"attention_bias": True}
UNBIASED = {"attention_bias": False}
ONE_GROUP = {"num_key_value_heads": 1}
NO_GROUPS = {"num_key_value_heads": 6}
HEAD_DIM = {"head_dim": 24}
EXPERTS: Config = {"num_local_experts": 6, "num_experts_per_tok": 2}
MOE: Config = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
DEEPSEEK: Config = {
    **DECODER, "num_key_value_heads": 6, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 24, "first_k_dense_replace": 2, "kv_lora_rank": 20, "q_lora_rank": 28,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10, "n_group": 2, "topk_group": 1,
}  # fmt: skip

VARIATIONS: dict[str, tuple[Config, list[Config]]] = {
    "llama": (DECODER, [{}, TIED, BIASED, {"mlp_bias": True}, HEAD_DIM, ONE_GROUP, {"num_key_value_heads": None}]),
    "mistral": (DECODER, [{}, TIED, HEAD_DIM, {"sliding_window": None}, {"head_dim": None}]),
    "mixtral": ({**DECODER, **EXPERTS}, [{}, TIED, {"num_local_experts": 3, "num_experts_per_tok": 1}, HEAD_DIM]),
    "qwen2": (DECODER, [{}, HEAD_DIM, TIED, {"use_sliding_window": True, "max_window_layers": 3}, NO_GROUPS]),
    "qwen2_moe": (
        {**DECODER, **MOE, "shared_expert_intermediate_size": 56},
        [{}, HEAD_DIM, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3]}, {"qkv_bias": False}, TIED,
         {"num_experts": 0}],
    ),
    "qwen3": (DECODER, [{}, HEAD_DIM, BIASED, TIED, NO_GROUPS]),
    "qwen3_moe": (
        {**DECODER, **MOE},
        [{}, HEAD_DIM, BIASED, {"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}, TIED],
    ),
    "gemma": (DECODER, [{}, HEAD_DIM, BIASED, UNTIED]),
    "gemma2": (DECODER, [{}, HEAD_DIM, BIASED, UNTIED, {"attn_logit_softcapping": None}]),
    "gemma3_text": (DECODER, [{}, HEAD_DIM, BIASED, UNTIED, {"sliding_window_pattern": 2}]),
    "phi": (
        DECODER,
        [{}, HEAD_DIM, {"qk_layernorm": True, **HEAD_DIM}, {"qk_layernorm": True}, {"num_key_value_heads": None}, TIED],
    ),
    "phi3": (DECODER, [{}, HEAD_DIM, TIED, NO_GROUPS, {"sliding_window": 16}]),
    "phimoe": (
        {**DECODER, **EXPERTS},
        [{}, HEAD_DIM, BIASED, {"lm_head_bias": True}, TIED,
         {**BIASED, "lm_head_bias": True, "num_experts_per_tok": 1}],
    ),
    "glm": (DECODER, [{}, HEAD_DIM, UNBIASED, TIED]),
    "glm4": (DECODER, [{}, HEAD_DIM, UNBIASED, TIED]),
    "glm4_moe": (
        {**DECODER, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
        [{}, BIASED, {"use_qk_norm": True}, HEAD_DIM, {"first_k_dense_replace": 0}, {"n_shared_experts": 2}, TIED],
    ),
    "gpt2": (GPT2, [{}, UNTIED, {"n_inner": 100}]),
    "gpt_bigcode": (GPT2, [{}, {"multi_query": False}, UNTIED, {"n_inner": 100}]),
    "gptj": ({**GPT2, "rotary_dim": 8}, [{}, TIED, {"n_inner": 100}]),
    "gpt_neo": (
        {
            "vocab_size": 384, "hidden_size": 96, "num_layers": 4, "num_heads": 6, "max_position_embeddings": 72,
            "attention_types": [[["global", "local"], 2]],
        },
        [{}, UNTIED, {"intermediate_size": 100}],
    ),
    "gpt_neox": (
        {k: v for k, v in DECODER.items() if k != "num_key_value_heads"},
        [{}, TIED, UNBIASED, {"use_parallel_residual": False}],
    ),
    "opt": (
        {
            "vocab_size": 384, "hidden_size": 96, "ffn_dim": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
            "max_position_embeddings": 72,
        },
        [
            {}, UNTIED, {"word_embed_proj_dim": 40}, {"word_embed_proj_dim": 40, **UNTIED}, {"enable_bias": False},
            {"do_layer_norm_before": False}, {"layer_norm_elementwise_affine": False},
            {"_remove_final_layer_norm": True},
        ],
    ),
    "bloom": ({"vocab_size": 384, "hidden_size": 96, "n_layer": 3, "n_head": 6}, [{}, UNTIED]),
    "falcon": (
        {"vocab_size": 384, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6},
        [
            {}, UNTIED, {"multi_query": False}, {"new_decoder_architecture": True, "num_kv_heads": 2},
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            {"parallel_attn": False}, {"parallel_attn": False, "alibi": True, "multi_query": False, "bias": True},
            {"bias": True}, {"ffn_hidden_size": 100}, {"num_ln_in_parallel_attn": 2},
        ],
    ),
    "mpt": (
        {"vocab_size": 384, "d_model": 96, "n_layers": 3, "n_heads": 6, "max_seq_len": 72},
        [{}, UNTIED, {"no_bias": False}, {"expansion_ratio": 2}, {"attn_config": {"alibi": False}}],
    ),
    "starcoder2": (DECODER, [{}, UNTIED, {"use_bias": False}, HEAD_DIM]),
    "stablelm": (
        DECODER,
        [
            {}, TIED, {"use_qkv_bias": True}, {"qk_layernorm": True}, {"use_parallel_residual": True},
            {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
        ],
    ),
    "cohere": (DECODER, [{}, HEAD_DIM, HEAD_DIM, UNTIED, BIASED, {"use_qk_norm": True}]),
    "cohere2": (DECODER, [{}, HEAD_DIM, UNTIED, BIASED, {"sliding_window_pattern": 2}]),
    "olmo": (DECODER, [{}, HEAD_DIM, TIED, BIASED, {"num_key_value_heads": None}]),
    "olmo2": (DECODER, [{}, HEAD_DIM, TIED, BIASED, NO_GROUPS]),
    "olmoe": ({**DECODER, "num_experts": 6, "num_experts_per_tok": 2}, [{}, HEAD_DIM, TIED, BIASED]),
    "granite": (DECODER, [{}, HEAD_DIM, TIED, BIASED, {"mlp_bias": True}]),
    "deepseek_v2": (
        DEEPSEEK,
        [{}, BIASED, {"mlp_bias": True}, {"q_lora_rank": None}, {"first_k_dense_replace": 0}, TIED,
         {"q_lora_rank": None, **BIASED}, {"n_shared_experts": 1}],
    ),
    "deepseek_v3": (
        DEEPSEEK,
        [{}, BIASED, {"q_lora_rank": None}, {"first_k_dense_replace": 9}, {"num_nextn_predict_layers": 2}, TIED],
    ),
    "kimi_k2": (DEEPSEEK, [{}, {"q_lora_rank": None}, {"first_k_dense_replace": 1}]),
    "gpt_oss": ({**DECODER, **EXPERTS}, [{}, HEAD_DIM, UNBIASED, TIED]),
    "internlm2": (DECODER, [{}, {"bias": False}, TIED, {"num_key_value_heads": None}]),
    "seed_oss": (DECODER, [{}, UNBIASED, {"attention_out_bias": True}, {"mlp_bias": True}, HEAD_DIM, TIED]),
    "smollm3": (
        DECODER,
        [{}, HEAD_DIM, UNTIED, BIASED, {"mlp_bias": True}, {"use_sliding_window": True, "sliding_window": 16}],
    ),
    "nemotron": (DECODER, [{}, TIED, BIASED, {"mlp_bias": True}, HEAD_DIM]),
    "dbrx": (
        {
            "vocab_size": 384, "d_model": 96, "n_layers": 3, "n_heads": 6, "max_seq_len": 72,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 2},
        },
        [
            {}, {"attn_config": {"kv_n_heads": 3, "rope_theta": 10000.0}},
            {"ffn_config": {"ffn_hidden_size": 56, "moe_num_experts": 3, "moe_top_k": 1}},
        ],
    ),
    "llama4_text": (
        {**DECODER, **EXPERTS, "intermediate_size_mlp": 200, "head_dim": 16},
        [{}, {"interleave_moe_layer_step": 2}, {"moe_layers": [0, 4]}, BIASED, {"use_qk_norm": False}, TIED,
         {"num_local_experts": 0, "num_experts_per_tok": 0, "moe_layers": [], "interleave_moe_layer_step": 0}],
    ),
    "bert": (
        {
            "vocab_size": 384, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
            "num_attention_heads": 6, "max_position_embeddings": 72,
        },
        [{}, UNTIED, {"type_vocab_size": 1}],
    ),
    "roberta": (
        {
            "vocab_size": 384, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
            "num_attention_heads": 6, "max_position_embeddings": 74,
        },
        [{}, UNTIED, {"type_vocab_size": 1}],
    ),
    "t5": (
        {"vocab_size": 384, "d_model": 96, "d_kv": 20, "d_ff": 160, "num_layers": 3, "num_heads": 6},
        [{}, UNTIED, {"feed_forward_proj": "gated-gelu"}, {"num_decoder_layers": 2}, {"num_layers": 1},
         {"relative_attention_num_buckets": 16}],
    ),
    "vit": (
        {
            "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
            "image_size": 32, "patch_size": 8,
        },
        [{}, {"qkv_bias": False}, {"num_labels": 10}, {"id2label": {"0": "a", "1": "b", "2": "c"}},
         {"num_channels": 1}, {"image_size": [32, 48]}],
    ),
}  # fmt: skip
"""`model_type` to a base config and what each variation adds to it."""


def variations() -> dict[str, Config]:
    """All configs by a name that says what they vary."""
    configs: dict[str, Config] = {}
    for model_type, (base, changes) in VARIATIONS.items():
        for change in changes:
            name = f"{model_type} small" + "".join(f" {key}={value}" for key, value in change.items())
            configs[name] = {"model_type": model_type, **base, **change}
    return configs
