"""Megatron-LM's arguments in the contract's words.

Sources: NVIDIA/Megatron-LM `megatron/training/arguments.py` and `megatron/core/transformer/transformer_config.py`
(names, defaults, what follows from what), `megatron/training/tokenizer/tokenizer.py` (NullTokenizer adds one token);
microsoft/Megatron-DeepSpeed `megatron/arguments.py` (zero_stage, cpu_offload, checkpoint_activations); version 1 of
2020 (model_parallel_size, batch_size a GPU). An option that is off is not in a command line, and an option that a
version did not have yet is not in its dump: either way the run did without it. The optimizer `adam` is apex's
FusedAdam with decoupled weight decay (`adam_w_mode`), which is AdamW.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.run_logs.facts import Facts
from app.run_logs.megatron_arguments import ArgumentWords
from app.run_logs.megatron_stages import say_stages

DROPOUT: Final = 0.1
"""The default of both kinds in every version of Megatron-LM; forks around DeepSpeed have others."""
_CONTEXT_KINDS: Final = (("a2a", "all-to-all"), ("p2p", "ring"), ("all", "all-gather"))
_FP8_RECIPES: Final = {
    "delayed": "tensorwise",
    "tensorwise": "tensorwise",
    "blockwise": "blockwise",
    "mxfp8": "mxfp8",
}
_OPTIMIZERS: Final = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "dist_muon": "muon"}
_UNSAID_SAVERS: Final = ("distribute_saved_activations", "partition_activations", "checkpoint_in_cpu")
"""Saved activations of a full recomputation that lie in shards on the tensor ranks, or on the CPU."""
_RECOMPUTE_MODULES: Final = ("core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe")


def say_arguments(arguments: Mapping[str, Any], facts: Facts, *, dumped: bool) -> None:
    """Note what the arguments say of model, workload, strategy and the number of GPUs."""
    if not arguments:
        return
    words = ArgumentWords(arguments)
    if not dumped:
        facts.note("read from a command line: what it leaves out has Megatron-LM's default")
    facts.gpus = words.integer("world_size") or facts.gpus
    _model(words, facts)
    _workload(words, facts, dumped=dumped)
    _degrees(words, facts)
    _memory_savers(words, facts)
    _dtypes(words, facts)


def _model(words: ArgumentWords, facts: Facts) -> None:
    if (
        words.on("multi_latent_attention")
        or words.text("hybrid_layer_pattern")
        or words.text("hybrid_override_pattern")
    ):
        facts.note("latent attention or a hybrid model: an architecture cannot say it, give model.preset or hf_config")
        return
    heads, hidden = words.integer("num_attention_heads"), words.integer("hidden_size")
    gated = words.on("swiglu", "gated_linear_unit", "quick_geglu") or words.text("glu_activation") not in ("", "none")
    grouped = words.integer("num_query_groups", "num_key_value_heads") if _is_grouped(words) else None
    ffn = words.integer("ffn_hidden_size")
    if ffn is None and hidden:
        # As the program derives it: 4 h, for a gated one two thirds of that, to a multiple of 64.
        ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    facts.architecture("layers", words.integer("num_layers", "encoder_num_layers"))
    facts.architecture("hidden_size", hidden)
    facts.architecture("attention_heads", heads)
    facts.architecture("key_value_heads", grouped or heads)
    facts.architecture("ffn_hidden_size", ffn)
    facts.architecture("gated_mlp", gated)
    facts.architecture("tied_embeddings", not words.on("untie_embeddings_and_output_weights"))
    facts.architecture("position_embeddings", _positions(words))
    facts.architecture("max_position_embeddings", words.integer("max_position_embeddings"))
    facts.architecture("norm", "rmsnorm" if "rms" in words.text("normalization") else "layernorm")
    facts.architecture("biases", not words.on("disable_bias_linear") and words.text("add_bias_linear") != "false")
    channels = words.integer("kv_channels")
    if channels and hidden and heads and channels * heads != hidden:
        facts.architecture("head_dim", channels)
    _vocabulary(words, facts)
    _experts(words, facts)


def _is_grouped(words: ArgumentWords) -> bool:
    return words.on("group_query_attention") or words.integer("num_key_value_heads") is not None


def _positions(words: ArgumentWords) -> str:
    kind = words.text("position_embedding_type")
    if words.on("use_rotary_position_embeddings") or "rope" in kind or "rotary" in kind:
        return "rotary"
    if "alibi" in kind:
        return "alibi"
    return "none" if kind == "none" else "learned"


def _vocabulary(words: ArgumentWords, facts: Facts) -> None:
    size = words.integer("vocab_size")
    if size and words.text("tokenizer_type") == "nulltokenizer":
        size += 1
        facts.note("vocab_size: NullTokenizer adds one token to --vocab-size")
    if size is None:
        size = words.integer("padded_vocab_size")
        if size:
            facts.note("vocab_size: only the padded one is told")
    facts.architecture("vocab_size", size)


def _experts(words: ArgumentWords, facts: Facts) -> None:
    experts, first = words.only("num_experts"), _first_expert_layer(words)
    if experts is not None and experts <= 1:
        return
    if experts is None or first is None:
        facts.sections.pop("model", None)
        facts.note("experts differ from layer to layer: an architecture cannot say it, give model.preset or hf_config")
        return
    facts.architecture("experts", experts)
    facts.architecture("experts_per_token", words.integer("moe_router_topk", "topk") or 2)
    facts.architecture("expert_ffn_hidden_size", words.integer("moe_ffn_hidden_size"))
    facts.architecture("shared_expert_ffn_hidden_size", words.integer("moe_shared_expert_intermediate_size"))
    facts.architecture("first_dense_layers", first or None)


def _first_expert_layer(words: ArgumentWords) -> int | None:
    """From which layer on all have experts; None: dense ones come behind it, or the pattern is none that we read.

    `moe_layer_freq` is n for every n-th layer, or a list with 1 for a layer with experts, written out or as Python
    ("([0]*3+[1]*58)"); `expert_interval` is Megatron-DeepSpeed's n.
    """
    pattern = re.sub(r"[\s\[\](),]", "", re.sub(r"\[([01])\]\*(\d{1,4})", _repeated, words.text("moe_layer_freq")))
    if (words.integer("expert_interval") or 1) > 1 or not re.fullmatch(r"\+?0*\+?1*", pattern):
        return None
    return pattern.count("0")


def _repeated(found: re.Match[str]) -> str:
    return found.group(1) * int(found.group(2))


def _workload(words: ArgumentWords, facts: Facts, *, dumped: bool) -> None:
    facts.say("workload.sequence_length", words.integer("seq_length", "encoder_seq_length"))
    facts.say("workload.global_batch_size", words.integer("global_batch_size") or _batch_of_version_1(words))
    precision = "bf16" if words.on("bf16") else "fp16" if words.on("fp16") else "fp32"
    if words.text("fp8") not in ("", "false", "none") or words.on("fp8_e4m3", "fp8_hybrid"):
        precision = "fp8"
        facts.say("strategy.fp8_recipe", _FP8_RECIPES.get(words.text("fp8_recipe") or "delayed"))
    elif words.text("fp4") not in ("", "false", "none"):
        precision = "nvfp4"
    facts.say("workload.precision", precision)
    optimizer = words.text("optimizer") or "adam"
    if optimizer == "sgd":
        facts.say("workload.optimizer", "sgd-momentum")
    elif optimizer in _OPTIMIZERS:
        facts.say("workload.optimizer", _OPTIMIZERS[optimizer])
    else:
        facts.ask("workload.optimizer")
    hidden, attention = words.number("hidden_dropout"), words.number("attention_dropout")
    if not dumped and not words.on("deepspeed"):
        hidden, attention = (DROPOUT if found is None else found for found in (hidden, attention))
    if hidden is not None and hidden == attention:
        facts.say("workload.dropout", hidden)
    _attention(words, facts, dumped=dumped)


def _batch_of_version_1(words: ArgumentWords) -> int | None:
    """Version 1 did not accumulate: the batch of a GPU times the replicas. DeepSpeed may, by its own config."""
    each, gpus, tensor = words.integer("batch_size"), words.integer("world_size"), words.integer("model_parallel_size")
    if each and gpus and tensor and gpus % tensor == 0 and not words.on("deepspeed"):
        return each * (gpus // tensor)
    return None


def _attention(words: ArgumentWords, facts: Facts, *, dumped: bool) -> None:
    backend = words.text("attention_backend")
    if words.on("use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton") or (
        "flash" in backend or "fused" in backend.replace("unfused", "")
    ):
        facts.say("workload.attention", "flash")
    elif "unfused" in backend or "local" in backend or words.text("transformer_impl") == "local":
        facts.say("workload.attention", "eager")
    elif words.text("transformer_impl") == "transformer_engine" or backend:
        facts.say("workload.attention", "flash")
        facts.note("attention: Transformer Engine chooses a fused kernel where there is one, taken as flash")
    elif dumped:
        facts.say("workload.attention", "eager")
    else:
        facts.ask("workload.attention")


def _degrees(words: ArgumentWords, facts: Facts) -> None:
    tensor = words.integer("tensor_model_parallel_size", "model_parallel_size") or 1
    pipeline = words.integer("pipeline_model_parallel_size") or 1
    context = words.integer("context_parallel_size") or words.integer("ds_sequence_parallel_size") or 1
    facts.say("strategy.tensor_parallel_size", tensor)
    facts.say("strategy.pipeline_parallel_size", pipeline)
    facts.say("strategy.context_parallel_size", context)
    if facts.gpus and facts.gpus % (tensor * pipeline * context) == 0:
        facts.say("strategy.data_parallel_size", facts.gpus // (tensor * pipeline * context))
    facts.say("strategy.sequence_parallel", words.on("sequence_parallel") and tensor > 1)
    facts.say("strategy.micro_batch_size", words.integer("micro_batch_size", "batch_size"))
    if context > 1 and (kind := words.text("cp_comm_type") or "p2p"):
        facts.say("strategy.context_parallel_kind", next((v for k, v in _CONTEXT_KINDS if k in kind), None))
    if (words.only("num_experts") or 0) > 1:
        facts.say("strategy.expert_parallel_size", words.integer("expert_model_parallel_size") or 1)
        facts.say("strategy.expert_tensor_parallel_size", words.integer("expert_tensor_parallel_size"))
    facts.ranks_by_data_first = words.on("use_tp_pp_dp_mapping")
    say_stages(words, facts, pipeline)


def _memory_savers(words: ArgumentWords, facts: Facts) -> None:
    granularity = words.text("recompute_granularity")
    if granularity == "full" or words.on("checkpoint_activations", "deepspeed_activation_checkpointing"):
        facts.say("strategy.activation_checkpointing", "full")
        if words.text("recompute_method") == "block":
            facts.say("strategy.checkpointed_layers", words.integer("recompute_num_layers"))
    elif granularity == "selective" or words.on("recompute_activations"):
        facts.say("strategy.activation_checkpointing", "selective")
        named = [
            module for module in _RECOMPUTE_MODULES if re.search(rf"\b{module}\b", words.text("recompute_modules"))
        ]
        facts.say("strategy.recompute_modules", named or None)
    else:
        facts.say("strategy.activation_checkpointing", "none")
    if unsaid := [name for name in _UNSAID_SAVERS if words.on(name)]:
        facts.note(f"{', '.join(unsaid)}: saves memory in a way that a Strategy cannot say")
    _sharding(words, facts)
    if words.on("optimizer_cpu_offload", "cpu_optimizer", "cpu_offload"):
        facts.say("strategy.offload", "optimizer")
        facts.say("strategy.offload_fraction", words.number("optimizer_offload_fraction"))
    elif words.on("cpu_offloading") or words.integer("cpu_offloading_num_layers"):
        facts.say("strategy.offload", "activations")
    elif words.text("remote_device") in ("cpu", "nvme"):
        facts.ask("strategy.offload")
    else:
        facts.say("strategy.offload", "none")
    facts.say("strategy.overlap_communication", words.on("overlap_grad_reduce", "overlap_param_gather"))
    if words.on("enable_cuda_graph", "external_cuda_graph") or words.text("cuda_graph_impl") not in ("", "none"):
        facts.say("strategy.cuda_graphs", True)


def _sharding(words: ArgumentWords, facts: Facts) -> None:
    framework = "megatron-lm"
    stage: int | None = 1 if words.on("use_distributed_optimizer") else 0
    if words.on("use_torch_fsdp2"):
        framework, stage = "fsdp2", 3
    elif words.on("use_megatron_fsdp", "use_custom_fsdp"):
        kind = words.text("data_parallel_sharding_strategy")
        stage = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(kind, 0)
    elif words.on("deepspeed"):
        stage = words.whole("zero_stage")
    facts.say("strategy.framework", framework)
    facts.say("strategy.zero_stage", stage)
    instances = words.integer("num_distributed_optimizer_instances")
    if instances and instances > 1:
        facts.say("strategy.data_parallel_replicate_size", instances)


def _dtypes(words: ArgumentWords, facts: Facts) -> None:
    if facts.said("workload.precision") == "fp32" or words.on("deepspeed"):
        return
    if words.on("accumulate_allreduce_grads_in_fp32") or facts.said("workload.precision") != "fp16":
        facts.say("strategy.gradient_dtype", "fp32" if not words.on("grad_reduce_in_bf16") else "bf16")
    else:
        facts.say("strategy.gradient_dtype", "fp16")
