"""Which blocks are recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.torch_truth.transformers_blocks import Case

Config = dict[str, Any]

DECODER: Config = {
    "vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 4, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WHOLE_HEADS: Config = {**DECODER, "num_key_value_heads": 16}
GPT2: Config = {"vocab_size": 1024, "n_embd": 1024, "n_layer": 3, "n_head": 16, "n_positions": 1024}
EXPERTS: Config = {"num_local_experts": 8, "num_experts_per_tok": 2}
MOE: Config = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512}
DEEPSEEK: Config = {
    **WHOLE_HEADS, "n_routed_experts": 32, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "moe_intermediate_size": 512, "first_k_dense_replace": 1, "kv_lora_rank": 256, "q_lora_rank": 384,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_group": 4, "topk_group": 2,
}  # fmt: skip
T5: Config = {"vocab_size": 1024, "d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_heads": 16}
HEAD_DIM: Config = {**DECODER, "head_dim": 64}
ENCODER: Config = {**DECODER, "max_position_embeddings": 1024}
del ENCODER["num_key_value_heads"]

CONFIGS: Final[dict[str, Config]] = {
    "llama": DECODER, "mistral": DECODER, "qwen2": DECODER, "qwen3": HEAD_DIM, "gemma": HEAD_DIM,
    "gemma2": HEAD_DIM, "gemma3_text": HEAD_DIM, "phi": DECODER,
    "phi3": DECODER, "glm": HEAD_DIM, "glm4": HEAD_DIM, "olmo": DECODER,
    "olmo2": DECODER, "cohere": DECODER, "cohere2": DECODER, "starcoder2": DECODER, "stablelm": DECODER,
    "granite": DECODER, "smollm3": DECODER, "nemotron": DECODER,
    "gpt2": GPT2, "gptj": {**GPT2, "rotary_dim": 64}, "gpt_bigcode": GPT2,
    "gpt_neo": {"vocab_size": 1024, "hidden_size": 1024, "num_layers": 3, "num_heads": 16,
                "max_position_embeddings": 1024, "attention_types": [[["global"], 3]]},
    "gpt_neox": {**ENCODER, "intermediate_size": 4096},
    "bloom": {"vocab_size": 1024, "hidden_size": 1024, "n_layer": 3, "n_head": 16},
    "opt": {"vocab_size": 1024, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 3, "num_attention_heads": 16,
            "word_embed_proj_dim": 1024, "max_position_embeddings": 1024},
    "falcon": {"vocab_size": 1024, "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16},
    "mpt": {"vocab_size": 1024, "d_model": 1024, "n_layers": 3, "n_heads": 16, "max_seq_len": 1024},
    "mixtral": {**DECODER, **EXPERTS}, "qwen2_moe": {**DECODER, **MOE, "shared_expert_intermediate_size": 2048},
    "qwen3_moe": {**DECODER, **MOE, "head_dim": 64}, "olmoe": {**DECODER, "num_experts": 32, "num_experts_per_tok": 4},
    "gpt_oss": {**DECODER, **EXPERTS, "head_dim": 64}, "phimoe": {**DECODER, **EXPERTS},
    "glm4_moe": {**DECODER, "n_routed_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
                 "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek_v2": {**DEEPSEEK, "topk_method": "greedy"}, "deepseek_v3": DEEPSEEK,
    "llama4_text": {**DECODER, "head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 1,
                    "intermediate_size_mlp": 4096, "interleave_moe_layer_step": 1},
    "bert": ENCODER, "roberta": {**ENCODER, "pad_token_id": 0, "max_position_embeddings": 1026},
    "t5 encoder": {**T5, "num_layers": 5, "num_decoder_layers": 1},
    "t5 decoder": {**T5, "num_layers": 1, "num_decoder_layers": 5},
    "t5 gated": {**T5, "num_layers": 5, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu"},
    "vit": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 16},
}  # fmt: skip


OWN_ATTENTION = ("bloom", "falcon", "gpt_neo", "mpt")
"""Classes that take no attention kernel from outside."""
SPARSE = (
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "phimoe", "glm4_moe", "deepseek_v2", "deepseek_v3",
    "llama4_text",
)  # fmt: skip
"""Grouped products of experts take 16 bit only on the meta device, and autocast does not know them."""


def transformers_cases(configs: Mapping[str, Config]) -> Iterator[Case]:
    """Every class with each attention, dtype and dropout, and with a single sample."""
    for model, config in configs.items():
        attentions = ("eager",) if model in OWN_ATTENTION else ("flash", "eager")
        for attention in attentions:
            yield Case(model, config, attention)
            yield Case(model, config, attention, batch=1)
            if model == "falcon":
                # Its attention drops nothing, and autocast does not remember its transposed weights.
                continue
            yield Case(model, config, attention, dropout=0.1)
            if model in SPARSE:
                continue
            yield Case(model, config, attention, "autocast")
            if attention == "eager":
                yield Case(model, config, attention, "fp32")
                yield Case(model, config, attention, "fp32", dropout=0.1)
    for model in ("llama", "gpt2", "bert"):
        config = configs[model]
        for weights in ("bf16", "autocast", "fp32"):
            yield Case(model, config, "eager", weights, "full")
        yield Case(model, config, "eager", "autocast", dropout=0.1)
        yield Case(model, config, "flash", "fp16")
