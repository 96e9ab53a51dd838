"""Keys that any config may carry and that say nothing about weights or work."""

from __future__ import annotations

from typing import Final

INERT_KEYS: Final = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "add_cross_attention",
    "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_implementation", "auto_map",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "cross_attention_hidden_size", "custom_pipelines", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "generation_config", "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label",
    "initializer_range", "is_decoder", "is_encoder_decoder", "is_llama_config", "keys_to_ignore_at_inference",
    "label2id", "layer_norm_eps", "layer_norm_epsilon", "length_penalty", "max_length", "min_length", "model_type",
    "neftune_noise_alpha", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "original_max_position_embeddings", "output_attentions", "output_hidden_states",
    "output_past", "output_router_logits", "output_scores", "pad_token_id", "partial_rotary_factor", "prefix",
    "pretraining_tp", "problem_type", "quantization", "quantization_config", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "rms_norm_eps", "rope_parameters",
    "rope_scaling", "rope_theta", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings",
    "tokenizer_class", "tokenizer_name", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache",
})  # fmt: skip
"""Fields of every transformers config (tokens, output and generation settings, storage formats, labels), dropout and
rope settings, and the notes that tools leave behind."""
