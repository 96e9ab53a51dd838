"""Target `megatron-bridge`: a ConfigContainer of NVIDIA-NeMo/Megatron-Bridge as YAML, and the script that trains it."""

from __future__ import annotations

from typing import Any, Final

import yaml

from cost_models.workload import FineTuning
from search.launch.bridge_config import (
    Section,
    data_parallel_section,
    filled_in,
    mixed_precision_section,
    model_section,
    optimizer_section,
    other_sections,
    target,
)
from search.launch.environment import environment, reasons
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob, NotExpressible
from search.launch.megatron_arguments import iterations, strategy_arguments
from search.launch.megatron_model import model_arguments
from search.launch.megatron_refusals import megatron_refusals
from search.launch.rendezvous import by_hand, exports, slurm_script, start, torchrun

TARGET: Final = "megatron-bridge"
CONFIG_PATH: Final = "bridge.yaml"
TRAIN_PATH: Final = "train.py"
SCRIPT_PATH: Final = "train.sh"
_ATTENTION: Final = ["linear_qkv", "linear_proj"]
_LATENT_ATTENTION: Final = [
    *("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
]
_FEED_FORWARD: Final = ["linear_fc1", "linear_fc2"]
_TRAIN: Final = '''"""Trains what {config} describes."""

from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.{module} import {module}
from megatron.bridge.training.gpt_step import forward_step

if __name__ == "__main__":
    {module}(ConfigContainer.from_yaml("{config}"), forward_step)
'''
_NOTES: Final = (
    "Set DATA_PATH (prefix of the tokenized data; with LoRA the folder of the examples), TOKENIZER_MODEL (a Hugging "
    "Face tokenizer), CHECKPOINTS (a folder that all nodes see) and LEARNING_RATE before it starts.",
    "Rotary base and scaling, norm epsilon and how a router scores change neither memory nor time, and are not set: "
    "take them from the model's config.",
)


def write(job: LaunchJob) -> LaunchFiles:
    """The YAML, the script that reads it, `train.sh` for each node, and a Slurm script where there are several.

    Raises:
        NotExpressible: Megatron-Bridge has no field for some of what was planned, each named.
    """
    refusals = {**megatron_refusals(job), **_refusals(job)}
    if refusals:
        raise NotExpressible(TARGET, refusals)
    variables = environment(job)
    command = torchrun(job, [TRAIN_PATH])
    script = f"#!/bin/bash\nset -euo pipefail\n\n{exports(variables)}{command}\n"
    module = "pretrain" if job.workload.fine_tuning is None else "finetune"
    files = [
        LaunchFile(CONFIG_PATH, yaml.safe_dump(container(job), sort_keys=False, width=120)),
        LaunchFile(TRAIN_PATH, _TRAIN.format(config=CONFIG_PATH, module=module)),
        LaunchFile(SCRIPT_PATH, script),
    ]
    run = f"bash {SCRIPT_PATH}"
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, run, {}))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, run),
        environment=variables,
        notes=(*_NOTES, *_own_notes(job), *by_hand(job, run), *reasons(job)),
    )


def container(job: LaunchJob) -> dict[str, Any]:
    """The ConfigContainer, section by section."""
    options = {**model_arguments(job), **strategy_arguments(job)}
    sections: dict[str, Any] = {
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "model": model_section(job, options),
        "mixed_precision": mixed_precision_section(job, options),
        "optimizer": optimizer_section(job, options),
        "ddp": data_parallel_section(job, options),
        **other_sections(job, iterations(job)),
    }
    if job.workload.fine_tuning is not None:
        sections["peft"] = _adapters(job, job.workload.fine_tuning)
        sections["checkpoint"]["pretrained_checkpoint"] = filled_in("PRETRAINED_CHECKPOINT")
        if job.strategy["context_parallel_size"] > 1:
            # It asks for this where the prompt may be masked on all tokens of a rank.
            sections["model"]["calculate_per_token_loss"] = True
    return sections


def _adapters(job: LaunchJob, tuning: FineTuning) -> Section:
    latent = any(block.attention.latent for block in job.model.blocks)
    attention = _LATENT_ATTENTION if latent else _ATTENTION
    modules = attention if tuning.target == "attention" else [*attention, *_FEED_FORWARD]
    return target("megatron.bridge.peft.lora.LoRA", target_modules=list(modules), dim=tuning.rank)


def _refusals(job: LaunchJob) -> dict[str, str]:
    refusals = {}
    tuning, model = job.workload.fine_tuning, job.model
    if tuning is not None and tuning.method != "lora":
        refusals["fine_tuning"] = f"there is no {tuning.method}"
    elif tuning is not None and tuning.target == "attention-qv":
        refusals["fine_tuning"] = "queries, keys and values are one matrix, with one adapter"
    elif tuning is not None and tuning.modules_to_save:
        refusals["fine_tuning"] = f"{', '.join(tuning.modules_to_save)} cannot be trained beside adapters"
    positions = model.max_position_embeddings
    if model.position_embeddings == "learned" and positions != job.workload.sequence_length:
        refusals["model"] = f"it learns as many positions as a sequence has tokens, not {positions}"
    return refusals


def _own_notes(job: LaunchJob) -> list[str]:
    notes = []
    if job.workload.training_tokens is None:
        notes.append("training_tokens was not said: set TRAIN_ITERS, the number of steps.")
    if job.workload.fine_tuning is not None:
        notes.append("Set PRETRAINED_CHECKPOINT, the model in Megatron's format (`AutoBridge.import_ckpt`).")
    if job.strategy["offload"] == "activations":
        notes.append("Activations of all layers but the last are offloaded: those are wanted back at once.")
    return notes
