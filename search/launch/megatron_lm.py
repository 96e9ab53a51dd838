"""Target `megatron-lm`: `pretrain_gpt.py` of NVIDIA/Megatron-LM with all of its arguments."""

from __future__ import annotations

from typing import Final

from search.launch.environment import environment, reasons
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob, NotExpressible
from search.launch.megatron_arguments import iterations, strategy_arguments
from search.launch.megatron_model import model_arguments
from search.launch.megatron_refusals import fine_tuning_refusal, megatron_refusals
from search.launch.megatron_words import Options, flag, option, words
from search.launch.rendezvous import by_hand, exports, slurm_script, start, torchrun

TARGET: Final = "megatron-lm"
SCRIPT_PATH: Final = "train.sh"
SCRIPT: Final = "${MEGATRON_LM:?folder of Megatron-LM}/pretrain_gpt.py"
_NOTES: Final = (
    "Set MEGATRON_LM (its folder), DATA_PATH (prefix of the tokenized data), TOKENIZER_MODEL (a Hugging Face "
    "tokenizer), CHECKPOINTS (a folder that all nodes see) and LEARNING_RATE before it starts.",
    "Rotary base and scaling, norm epsilon and how a router scores change neither memory nor time, and are not set: "
    "take them from the model's config.",
)


def write(job: LaunchJob) -> LaunchFiles:
    """`train.sh` for each node, and a Slurm script where there are several.

    Raises:
        NotExpressible: Megatron-LM has no argument for some fields, each named.
    """
    refusals = {**megatron_refusals(job), **fine_tuning_refusal(job)}
    if refusals:
        raise NotExpressible(TARGET, refusals)
    command = torchrun(job, [SCRIPT, *words(arguments(job))])
    variables = environment(job)
    script = f"#!/bin/bash\nset -euo pipefail\n\n{exports(variables)}{command}\n"
    files = [LaunchFile(SCRIPT_PATH, script)]
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


def arguments(job: LaunchJob) -> Options:
    """All options of `pretrain_gpt.py`."""
    return {**model_arguments(job), **strategy_arguments(job), **_training(job)}


def _training(job: LaunchJob) -> Options:
    steps = iterations(job)
    return {
        **option("--train-iters", "${TRAIN_ITERS:?number of steps}" if steps is None else steps),
        **option("--lr", "${LEARNING_RATE:?highest learning rate}"),
        **option("--data-path", "${DATA_PATH:?prefix of the tokenized data}"),
        **option("--tokenizer-type", "HuggingFaceTokenizer"),
        **option("--tokenizer-model", "${TOKENIZER_MODEL:?name or folder of the tokenizer}"),
        **option("--save", "${CHECKPOINTS:?folder of the checkpoints}"),
        **option("--load", "${CHECKPOINTS}"),
        **option("--save-interval", 1000),
        **option("--log-interval", 1),
        **flag("--log-throughput"),
    }


def _own_notes(job: LaunchJob) -> list[str]:
    notes = []
    if job.workload.training_tokens is None:
        notes.append("training_tokens was not said: set TRAIN_ITERS, the number of steps.")
    if job.workload.optimizer == "adam":
        notes.append("Its Adam decouples weight decay; without decay, as here, it is plain Adam.")
    if job.workload.optimizer == "adamw-8bit":
        notes.append("Moments of 8 bit are fp8 here (--exp-avg-dtype fp8).")
    if job.strategy["offload"] == "activations":
        notes.append("Activations of all layers but the last are offloaded: those are wanted back at once.")
    if any(block.experts for block in job.model.blocks):
        notes.append("--moe-aux-loss-coeff 0.01 is the value that Megatron-LM recommends to begin with.")
    return notes
