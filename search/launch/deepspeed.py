"""Target `deepspeed`: `ds_config.json` and a training script around DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from search.launch.deepspeed_config import config_file, config_notes, config_refusals
from search.launch.environment import environment, reasons
from search.launch.hf_settings import (
    ARGUMENTS,
    NOTES,
    SCRIPT_PATH,
    model_refusals,
    script_files,
    script_refusals,
    step_words,
    template,
)
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob
from search.launch.refusals import refuse
from search.launch.rendezvous import slurm_script, start, torchrun

TARGET: Final = "deepspeed"
PIPELINE_PATH: Final = "planned_pipeline.py"
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "recompute_modules": "parts of layers are chosen with selective checkpointing only, which is refused",
    "fp8_recipe": "of 8-bit computation, which is refused",
    "expert_imbalance": "what the data and the router make of it, not a setting",
}
"""Fields that need no setting."""
_PIPELINE_NOTE: Final = (
    f"A pipeline runs layers that are listed one by one, which Hugging Face models are not: {PIPELINE_PATH} has the "
    "PipelineModule with the planned stages, and train.py is your own: it builds the list and calls train_batch(). "
    "Kernels, attention, loss, dropout, compilation and adapters are what your layers make of them."
)
_PARTIAL: Final = "the script for Hugging Face models has no pipeline, and your own layers decide it"


def write(job: LaunchJob) -> LaunchFiles:
    """`ds_config.json` with a script for Hugging Face models, or with the stages of a pipeline for one's own layers.

    Raises:
        NotExpressible: DeepSpeed has no setting for some fields, each named.
    """
    refuse(TARGET, config_refusals(job), engine_refusals(job), script_refusals(job), model_refusals(job))
    staged = job.strategy["pipeline_parallel_size"] > 1
    files = [config_file(job)]
    if staged:
        files.append(LaunchFile(PIPELINE_PATH, template("deepspeed_pipeline")))
        words, notes = ["${TRAIN:?your script, train.py}"], (_PIPELINE_NOTE,)
    else:
        files += script_files(job, "deepspeed")
        words, notes = [SCRIPT_PATH, *ARGUMENTS, *step_words(job)], NOTES
    variables = environment(job)
    command = torchrun(job, words)
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, command, variables))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, command),
        environment=variables,
        notes=(*notes, *config_notes(job), *reasons(job)),
    )


def engine_refusals(job: LaunchJob) -> dict[str, str]:
    """What the engine could do and the script, or a pipeline of one's own layers, does not."""
    strategy, workload = job.strategy, job.workload
    found = {}
    if strategy["checkpoint_loading"] == "rank0":
        found["checkpoint_loading"] = "every rank reads the checkpoint itself, whole or its part"
    if strategy["pipeline_parallel_size"] > 1:
        if workload.fine_tuning is not None:
            found["fine_tuning"] = _PARTIAL
        if strategy["compile"]:
            found["compile"] = _PARTIAL
        if workload.optimizer == "adamw-8bit":
            found["optimizer"] = "8-bit AdamW is not DeepSpeed's, and the script that brings it has no pipeline"
    return found
