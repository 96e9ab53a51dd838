"""Target `nanotron`: the YAML config of huggingface/nanotron's `run_train.py`.

Source: huggingface/nanotron `src/nanotron/config/config.py` at 00708b80c88ee7c05c89502e80c3201df916d774,
`parallelism_config.py` at 19f88fbe454691f9bfcf98d6e3433dd7bcb82389, `models_config.py` at
025f31413c6ea6a0fb6a5e35063b780ee91aba79.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from cost_models.architecture import FeedForward, ModelArchitecture
from cost_models.layouts import running_cost_layout
from search.launch.environment import environment, reasons
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob
from search.launch.megatron_arguments import iterations
from search.launch.refusals import Only, outside, refuse
from search.launch.rendezvous import by_hand, continued, exports, slurm_script, start, torchrun

TARGET: Final = "nanotron"
CONFIG_PATH: Final = "nanotron.yaml"
SCRIPT_PATH: Final = "train.sh"
DTYPES: Final[Mapping[str, str]] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ENGINES: Final[Mapping[str, str]] = {"1f1b": "1f1b", "gpipe": "afab"}
"""pipeline_schedule → `pp_engine`: one forward one backward, or all forward all backward."""
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "recompute_modules": "whole layers are recomputed, or none",
    "expert_parallel_size": "a model with experts is refused",
    "expert_tensor_parallel_size": "a model with experts is refused",
    "context_parallel_kind": "context parallelism is refused",
    "offload_fraction": "offload is refused",
    "fp8_recipe": "fp8 is refused",
    "expandable_segments": "a variable of the environment",
    "expert_imbalance": "what the data and the router make of it, not a setting",
    "training_tokens": "rounded up to whole steps in train_steps",
}
"""Fields that no key has to carry."""
_LIMITS: Final = (
    Only("data_parallel_replicate_size", (1,), "shards are not replicated"),
    Only("secondary_shard_size", (1,), "there is no second copy of the weights"),
    Only("virtual_pipeline_size", (1,), "a stage has one chunk"),
    Only("pipeline_schedule", tuple(ENGINES), "there is no such engine"),
    Only("context_parallel_size", (1,), "the sequence is not split"),
    Only("zero_stage", (0, 1), "gradients and weights are not sharded"),
    Only("activation_checkpointing", ("none", "full"), "whole layers are recomputed, or none"),
    Only("offload", ("none",), "everything stays on the GPU"),
    Only("precision", tuple(DTYPES), "it does not train in it"),
    Only("gradient_dtype", ("fp32",), "without fp32 gradients it keeps no fp32 weights for the optimizer either"),
    Only("optimizer_state_dtype", ("fp32",), "states have the dtype of the fp32 weights"),
    Only("compile", (False,), "layers are not compiled"),
    Only("kernels", ("fused",), "its norms and losses are fused kernels"),
    Only("cuda_graphs", (False,), "no graphs are captured"),
    Only("gradient_as_bucket_view", (True,), "gradients live in the buckets"),
    Only("checkpoint_loading", ("sharded",), "each rank loads its own part"),
    Only("checkpoint_saving", ("sharded",), "each rank saves its own part"),
)
_Rule = tuple[Callable[[ModelArchitecture], bool], str]
_LLAMA: Final[tuple[_Rule, ...]] = (
    (lambda model: model.norm != "rmsnorm" or model.position_embeddings != "rotary", "its norms or positions"),
    (lambda model: len(model.blocks) > 1, "blocks that differ"),
    (lambda model: model.is_encoder_decoder or model.is_classifier, "more than a decoder"),
    (lambda model: any(linear.bias for block in model.blocks for linear in block.linears), "biases"),
    (lambda model: any(_unlike_llama(block.feed_forward) for block in model.blocks), "its feed-forward"),
    (lambda model: any(block.norms != 2 or block.parallel_residual for block in model.blocks), "its residual branches"),
    (lambda model: any(_odd_heads(model, block.attention) for block in model.blocks), "its attention"),
    (lambda model: model.logit_soft_cap, "capped logits"),
)
_NOTES: Final = (
    "Set NANOTRON (its folder), DATA_PATH (a folder of tokenized data, a Nanoset), TOKENIZER (a Hugging Face "
    "tokenizer), CHECKPOINTS (a folder that all nodes see) and LEARNING_RATE before it starts; train.sh puts them in.",
    "Rotary base and scaling and norm epsilon change neither memory nor time, and are not set: take them from the "
    "model's config.",
)
_FILL_IN: Final = (
    "import os, pathlib, sys; given, filled = map(pathlib.Path, sys.argv[1:]); "
    "filled.write_text(os.path.expandvars(given.read_text()))"
)
_VARIABLES: Final = ("DATA_PATH", "TOKENIZER", "CHECKPOINTS", "LEARNING_RATE")


def write(job: LaunchJob) -> LaunchFiles:
    """The YAML, `train.sh`, which fills it in on each node, and a Slurm script where there are several.

    Raises:
        NotExpressible: nanotron has no key for some of what was planned, each named.
    """
    refuse(TARGET, outside(job, _LIMITS), _workload_refusals(job), _strategy_refusals(job))
    variables = environment(job)
    run = f"bash {SCRIPT_PATH}"
    files = [
        LaunchFile(CONFIG_PATH, yaml.safe_dump(config(job), sort_keys=False, width=120)),
        LaunchFile(SCRIPT_PATH, _script(job, variables)),
    ]
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, run, {}))
    untold = job.workload.training_tokens is None
    steps = ("training_tokens was not said: set TRAIN_ITERS, the number of steps.",) if untold else ()
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, run),
        environment=variables,
        notes=(*_NOTES, *steps, *by_hand(job, run), *reasons(job)),
    )


def config(job: LaunchJob) -> dict[str, Any]:
    """The whole config; what a person fills in is a shell variable."""
    strategy, workload = job.strategy, job.workload
    steps = iterations(job)
    return {
        "general": {"project": "paraplan", "run": "plan", "seed": 42, "ignore_sanity_checks": True},
        "parallelism": _parallelism(strategy),
        "model": {
            "dtype": DTYPES[strategy["precision"]],
            "make_vocab_size_divisible_by": 1,
            "init_method": {"std": 0.02},
            "model_config": _llama(job),
        },
        "tokenizer": {"tokenizer_name_or_path": "${TOKENIZER}"},
        "checkpoints": {"checkpoints_path": "${CHECKPOINTS}", "checkpoint_interval": 1000},
        "logging": {"iteration_step_info_interval": 1},
        "tokens": {
            "sequence_length": workload.sequence_length,
            "micro_batch_size": strategy["micro_batch_size"],
            "batch_accumulation_per_replica": job.micro_batches,
            "train_steps": "${TRAIN_ITERS}" if steps is None else steps,
        },
        "optimizer": _optimizer(job),
        "data_stages": [
            {
                "name": "training",
                "start_training_step": 1,
                "data": {"seed": 42, "num_loading_workers": 1, "dataset": {"dataset_folder": "${DATA_PATH}"}},
            }
        ],
    }


def _parallelism(strategy: Mapping[str, Any]) -> dict[str, Any]:
    split = strategy["sequence_parallel"]
    return {
        "dp": strategy["data_parallel_size"],
        "tp": strategy["tensor_parallel_size"],
        "pp": strategy["pipeline_parallel_size"],
        "pp_engine": ENGINES[strategy["pipeline_schedule"]],
        "tp_mode": "REDUCE_SCATTER" if split else "ALL_REDUCE",
        # Matrix products hide the collectives of sequence parallelism; an all-reduce is not hidden.
        "tp_linear_async_communication": bool(split and strategy["overlap_communication"]),
        "recompute_layer": strategy["activation_checkpointing"] == "full",
    }


def _llama(job: LaunchJob) -> dict[str, Any]:
    model = job.model
    block = model.blocks[0]
    assert isinstance(block.feed_forward, FeedForward)  # what has experts was refused
    return {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": block.feed_forward.hidden,
        "num_attention_heads": block.attention.heads,
        "num_key_value_heads": block.attention.key_value_heads,
        "num_hidden_layers": model.layers,
        "max_position_embeddings": max(model.max_position_embeddings or 0, job.workload.sequence_length),
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab_size,
        "_attn_implementation": "flash_attention_2",
    }


def _optimizer(job: LaunchJob) -> dict[str, Any]:
    if job.workload.optimizer == "sgd":
        factory: dict[str, Any] = {"name": "sgd"}
    else:
        betas = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8}
        factory = {"name": "adamW", **betas, "torch_adam_is_fused": True}
    return {
        "optimizer_factory": factory,
        "zero_stage": job.strategy["zero_stage"],
        # Adam without decay is what AdamW is without decay.
        "weight_decay": 0.1 if job.workload.optimizer == "adamw" else 0.0,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {
            "learning_rate": "${LEARNING_RATE}",
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
        },
    }


def _script(job: LaunchJob, variables: Mapping[str, str]) -> str:
    untold = ("TRAIN_ITERS",) if job.workload.training_tokens is None else ()
    needed = "".join(f'export {name}="${{{name}:?is not set}}"\n' for name in (*_VARIABLES, *untold))
    filled = '"${TMPDIR:-/tmp}/paraplan-nanotron.yaml"'
    fill = continued(["python3", "-c", _FILL_IN, CONFIG_PATH])
    command = torchrun(job, ["${NANOTRON:?folder of nanotron}/run_train.py"])
    return (
        f"#!/bin/bash\nset -euo pipefail\n\n{exports(variables)}{needed}"
        f"{fill} {filled}\n{command} \\\n    --config-file {filled}\n"
    )


def _workload_refusals(job: LaunchJob) -> dict[str, str]:
    workload = job.workload
    found: dict[str, str] = {}
    unlike = [why for broken, why in _LLAMA if broken(job.model)]
    if unlike:
        found["model"] = f"its Llama does not have {unlike[0]} of {job.model.name}"
    if workload.optimizer not in ("adamw", "adam", "sgd"):
        found["optimizer"] = f"there is no {workload.optimizer} (its SGD has no momentum)"
    if workload.attention != "flash":
        found["attention"] = "its attention is FlashAttention-2"
    if workload.fused_loss:
        found["fused_loss"] = "its loss is not fused with the head"
    if workload.dropout:
        found["dropout"] = "its Llama has none"
    if workload.fine_tuning is not None:
        found["fine_tuning"] = "there are no adapters"
    return found


def _strategy_refusals(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    found: dict[str, str] = {}
    stored = strategy["parameter_dtype"]
    if stored != strategy["precision"]:
        found["parameter_dtype"] = f"weights are stored in the precision, {strategy['precision']}, not in {stored}"
    split = list(running_cost_layout(job.model, strategy["pipeline_parallel_size"]))
    if list(strategy["layers_per_stage"]) != split:
        found["layers_per_stage"] = f"no setting changes its own split, {split}"
    if strategy["activation_checkpointing"] == "full" and strategy["checkpointed_layers"] < max(split):
        found["checkpointed_layers"] = "all layers are recomputed, or none"
    replicated = strategy["zero_stage"] == 0 and strategy["data_parallel_size"] > 1
    if not strategy["overlap_communication"] and replicated:
        found["overlap_communication"] = "DistributedDataParallel always reduces under the backward pass"
    return found


def _unlike_llama(part: Any) -> bool:
    return not isinstance(part, FeedForward) or not part.gated or part.activation != "silu"


def _odd_heads(model: ModelArchitecture, part: Any) -> bool:
    whole = part.heads * part.head_dim == model.hidden_size
    plain = part.latent is None and part.window is None and not part.norms and not part.other_parameters
    return not (whole and plain and part.causal and not part.soft_cap)
