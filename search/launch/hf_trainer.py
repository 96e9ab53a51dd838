"""Target `hf-trainer`: Transformers' Trainer on DeepSpeed, with `ds_config.json` and a file of TrainingArguments.

Source: huggingface/transformers 5.24 `training_args.py`, `integrations/deepspeed.py`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from search.launch.deepspeed import WITHOUT_MEANING, engine_refusals
from search.launch.deepspeed_config import (
    AUTO,
    CONFIG_PATH,
    GRADIENT_CLIPPING,
    config_file,
    config_notes,
    config_refusals,
)
from search.launch.environment import environment, reasons
from search.launch.hf_settings import (
    ARGUMENTS,
    NOTES,
    SCRIPT_PATH,
    model_refusals,
    offloaded_layers,
    script_files,
    steps,
)
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob
from search.launch.refusals import Only, outside, refuse
from search.launch.rendezvous import slurm_script, start, torchrun

TARGET: Final = "hf-trainer"
ARGUMENTS_PATH: Final = "training_args.json"
TRANSFORMERS: Final = "Transformers 5.24.0"
OPTIMIZERS: Final = {
    "adamw": "adamw_torch_fused",
    "adam": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "sgd": "sgd",
    "sgd-momentum": "sgd",
    "adafactor": "adafactor",
    "muon": "adamw_torch_fused",
}
"""optimizer → optim. What DeepSpeed's file says of the optimizer wins over it; 8-bit AdamW stands here alone."""
_LIMITS: Final = (
    Only("pipeline_parallel_size", (1,), "the Trainer runs no PipelineModule; the target deepspeed has one"),
    Only("context_parallel_size", (1,), "these files set up no Ulysses for the Trainer; the target deepspeed has it"),
)

__all__ = ["TARGET", "WITHOUT_MEANING", "every_n_layers", "training_arguments", "write"]


def write(job: LaunchJob) -> LaunchFiles:
    """`ds_config.json`, `training_args.json` and a script that hands both to the Trainer.

    Raises:
        NotExpressible: The Trainer has no setting for some fields, each named.
    """
    own = {**outside(job, _LIMITS), **_recomputation(job)}
    refuse(TARGET, config_refusals(job), engine_refusals(job), own, model_refusals(job))
    variables = environment(job)
    count = steps(job)
    more = () if count is not None else ("--steps", "${STEPS:?number of optimizer steps}")
    command = torchrun(job, [SCRIPT_PATH, *ARGUMENTS, *more])
    content = json.dumps(training_arguments(job), indent=2) + "\n"
    # The Trainer recomputes, offloads and compiles itself.
    left = {"checkpointed_layers": 0, "offloaded_layers": 0, "compile": False}
    files = [config_file(job, AUTO), LaunchFile(ARGUMENTS_PATH, content), *script_files(job, "hf_trainer", **left)]
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, command, variables))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, command),
        environment=variables,
        notes=(f"Written for {TRANSFORMERS}.", *NOTES, *config_notes(job), *reasons(job)),
    )


def every_n_layers(job: LaunchJob) -> int | None:
    """The Trainer recomputes every n-th layer from the first on; None: no n makes the planned number."""
    layers, planned = job.model.layers, job.strategy["checkpointed_layers"]
    return next((n for n in range(1, layers + 1) if _every(layers, n) == planned), None)


def _every(layers: int, step: int) -> int:
    """How many of 0, step, 2 step, … lie below `layers`."""
    return -(-layers // step)


def _recomputation(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    full = strategy["activation_checkpointing"] == "full"
    found = {}
    if full and every_n_layers(job) is None:
        wanted = strategy["checkpointed_layers"]
        found["checkpointed_layers"] = f"no every_n_layers recomputes {wanted} of {job.model.layers} layers"
    if strategy["offload"] == "activations":
        if not full:
            found["offload"] = "the Trainer offloads the activations of recomputed layers only"
        elif strategy["offload_fraction"] < 1:
            found["offload_fraction"] = "the Trainer offloads the activations of all recomputed layers"
    return found


def training_arguments(job: LaunchJob) -> dict[str, Any]:
    """TrainingArguments that say what was planned; folders, learning rate and schedule are the user's."""
    strategy = job.strategy
    count = steps(job)
    return {
        "per_device_train_batch_size": strategy["micro_batch_size"],
        "gradient_accumulation_steps": job.micro_batches,
        "max_grad_norm": GRADIENT_CLIPPING,
        "bf16": strategy["precision"] == "bf16",
        "fp16": strategy["precision"] == "fp16",
        "optim": OPTIMIZERS[job.workload.optimizer],
        **_checkpointing(job),
        "torch_compile": strategy["compile"],
        **({} if count is None else {"max_steps": count}),
        "deepspeed": CONFIG_PATH,
        "save_only_model": strategy["checkpoint_saving"] == "full",
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
        "remove_unused_columns": False,
    }


def _checkpointing(job: LaunchJob) -> dict[str, Any]:
    if job.strategy["activation_checkpointing"] != "full":
        return {"activation_checkpointing": False}
    more = {"offload": True} if offloaded_layers(job) else {}
    kwargs = {"use_reentrant": False, "every_n_layers": every_n_layers(job), **more}
    return {"activation_checkpointing": True, "activation_checkpointing_kwargs": kwargs}
