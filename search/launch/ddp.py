"""Target `torchrun`: DistributedDataParallel around a Hugging Face model, in a script of its own.

Source: PyTorch 2.13 `torch.nn.parallel.DistributedDataParallel`, "CUDA Automatic Mixed Precision examples".
"""

from __future__ import annotations

from typing import Final

from search.launch.accelerate import WITHOUT_MEANING
from search.launch.environment import environment, reasons
from search.launch.fsdp_refusals import sharded_refusals
from search.launch.hf_settings import (
    ARGUMENTS,
    NOTES,
    SCRIPT_PATH,
    model_refusals,
    script_files,
    script_refusals,
    step_words,
)
from search.launch.job import LaunchFiles, LaunchJob
from search.launch.refusals import Only, outside, refuse
from search.launch.rendezvous import slurm_script, start, torchrun

TARGET: Final = "torchrun"
TORCH: Final = "PyTorch 2.13"
BUCKET_MIB: Final = 25
"""DistributedDataParallel's own default."""

__all__ = ["TARGET", "WITHOUT_MEANING", "write"]


def write(job: LaunchJob) -> LaunchFiles:
    """`settings.json` and a script that reads it.

    Raises:
        NotExpressible: The script has no setting for some fields, each named.
    """
    known = outside(job, [Only("framework", ("ddp",), "the script wraps models in DistributedDataParallel")])
    refuse(TARGET, known, sharded_refusals(job), script_refusals(job), model_refusals(job))
    variables = environment(job)
    command = torchrun(job, [SCRIPT_PATH, *ARGUMENTS, *step_words(job)])
    own = {
        "gradient_as_bucket_view": job.strategy["gradient_as_bucket_view"],
        "bucket_cap_mb": BUCKET_MIB,
        "static_graph": not job.strategy["compile"] and job.micro_batches == 1,
    }
    files = list(script_files(job, "ddp", **own))
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, command, variables))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, command),
        environment=variables,
        notes=(
            f"Written for {TORCH}.",
            "static_graph is set where there is one micro-batch: with no_sync() and with compilation it may not be.",
            *NOTES,
            *reasons(job),
        ),
    )
