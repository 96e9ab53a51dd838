"""Target `torchtitan`: a function that returns a `Trainer.Config`, which is how torchtitan is configured since 0.3.

Source: pytorch/torchtitan 0.3.0 `config/configs.py`, `config/README.md`, `trainer.py`, `models/*/__init__.py`,
`distributed/pipeline_parallel.py`, `distributed/activation_checkpoint.py`, `components/optimizer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from search.launch.environment import environment, reasons
from search.launch.hf_settings import steps
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob
from search.launch.refusals import refuse
from search.launch.rendezvous import slurm_script, start, torchrun
from search.launch.torchtitan_model import ROPE_THETA, flavour, model_lines, model_refusals
from search.launch.torchtitan_refusals import schedule, strategy_refusals

TARGET: Final = "torchtitan"
TORCHTITAN: Final = "torchtitan 0.3.0"
CONFIG_PATH: Final = "planned_config.py"
RESHARD: Final = {0: "always", 2: "never", 3: "always"}
"""zero_stage → fsdp_reshard_after_forward."""
CHECKPOINTING: Final = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}
OPTIMIZERS: Final = {"adamw": "AdamW", "adam": "Adam"}
_IMPORTS: Final = '''"""The planned configuration of torchtitan."""

import os

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer
'''
_NOTES: Final = (
    f"Written for {TORCHTITAN}.",
    "HF_ASSETS is a folder with the model's tokenizer, LEARNING_RATE the highest learning rate; DATASET is one that "
    "torchtitan knows (c4 where it is not set). Weights start at random: checkpoint.initial_load_path changes that.",
)


def write(job: LaunchJob) -> LaunchFiles:
    """`planned_config.py` and the command that trains it.

    Raises:
        NotExpressible: torchtitan has no setting for some fields, each named.
    """
    refuse(TARGET, strategy_refusals(job), model_refusals(job))
    words = ["-m", "torchtitan.train", "--module", "planned_config", "--config", "planned"]
    command = torchrun(job, words)
    variables = environment(job)
    files = [LaunchFile(CONFIG_PATH, config_text(job))]
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, command, variables))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, command),
        environment=variables,
        notes=(*_NOTES, *_own_notes(job), *reasons(job)),
    )


def _own_notes(job: LaunchJob) -> Iterator[str]:
    if steps(job) is None:
        yield "training_tokens was not said: set STEPS, the number of optimizer steps."
    if flavour(job.model) is None:
        yield (
            f"torchtitan ships no {job.model.name}: planned_model() is its Llama in that shape, made with internal "
            f"functions of {TORCHTITAN}; set the rotary base (theta, here {ROPE_THETA}) from the model's config."
        )
    if job.strategy["precision"] in ("fp8", "nvfp4") and any(block.experts for block in job.model.blocks):
        yield "Linear layers compute in low precision; routed experts stay in bf16."


def config_text(job: LaunchJob) -> str:
    """The module."""
    loss = "CrossEntropyLoss.Config(global_vocab_size=model_spec.model.vocab_size)"
    if job.workload.fused_loss:
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss})"
    imports, model = model_lines(job)
    sections = {
        "model_spec": "model_spec",
        "hf_assets_path": 'os.environ["HF_ASSETS"]',
        "loss": loss,
        "dataloader": 'HuggingFaceTextDataLoader.Config(dataset=os.environ.get("DATASET", "c4"))',
        "optimizer": _optimizer(job),
        "training": _call("TrainingConfig", training(job)),
        "parallelism": _call("ParallelismConfig", parallelism(job)),
        "activation_checkpoint": CHECKPOINTING[job.strategy["activation_checkpointing"]],
        "compile": _call("CompileConfig", compilation(job)),
        "checkpoint": "CheckpointManager.Config(enable=True, interval=1000)",
    }
    body = "".join(f"        {name}={value},\n" for name, value in sections.items())
    lines = "".join(f"    {line}\n" for line in model)
    own = "".join(f"{line}\n" for line in imports)
    return f"{_IMPORTS}{own}\n\ndef planned() -> Trainer.Config:\n{lines}    return Trainer.Config(\n{body}    )\n"


class _Code(str):
    """Python that is written as it stands."""

    __slots__ = ()


def _call(name: str, values: dict[str, Any]) -> str:
    shown = (
        f"            {key}={value if isinstance(value, _Code) else repr(value)},\n" for key, value in values.items()
    )
    return f"{name}(\n{''.join(shown)}        )"


def training(job: LaunchJob) -> dict[str, Any]:
    """`TrainingConfig`. With a pipeline a local batch is all of a step's micro-batches, else one of them."""
    strategy = job.strategy
    micro = strategy["micro_batch_size"]
    piped = strategy["pipeline_parallel_size"] > 1
    count = steps(job)
    return {
        "local_batch_size": micro * job.micro_batches if piped else micro,
        "global_batch_size": job.workload.global_batch_size,
        "seq_len": job.workload.sequence_length,
        "steps": _Code('int(os.environ["STEPS"])') if count is None else count,
        "max_norm": 1.0,
        "dtype": DTYPES[strategy["parameter_dtype"]],
        "mixed_precision_param": "float32" if strategy["precision"] == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": strategy["offload"] == "optimizer-and-parameters",
        "disable_cuda_graphs": not strategy["cuda_graphs"],
    }


def parallelism(job: LaunchJob) -> dict[str, Any]:
    """`ParallelismConfig`."""
    strategy = job.strategy
    data, replicas = strategy["data_parallel_size"], strategy["data_parallel_replicate_size"]
    if strategy["zero_stage"] == 0:
        replicas = data
    found = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": data // replicas,
        "fsdp_reshard_after_forward": RESHARD[strategy["zero_stage"]],
        "tensor_parallel_degree": strategy["tensor_parallel_size"],
        "enable_sequence_parallel": strategy["sequence_parallel"],
        "context_parallel_degree": strategy["context_parallel_size"],
        "expert_parallel_degree": strategy["expert_parallel_size"],
        "pipeline_parallel_degree": strategy["pipeline_parallel_size"],
    }
    if strategy["context_parallel_size"] > 1:
        found["context_parallel_load_balancer"] = "ptrr"  # the one for FlexAttention
    if strategy["pipeline_parallel_size"] > 1:
        found["pipeline_parallel_schedule"] = schedule(strategy)
        found["pipeline_parallel_microbatch_size"] = strategy["micro_batch_size"]
        found["module_fqns_per_model_part"] = model_parts(strategy["layers_per_stage"])
    return found


def model_parts(layers_per_stage: list[int]) -> list[list[str]]:
    """Names of the modules of each model chunk: the embedding in the first, norm and head in the last."""
    ends = list(accumulate(layers_per_stage))
    parts = [
        [f"layers.{layer}" for layer in range(end - size, end)]
        for size, end in zip(layers_per_stage, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def compilation(job: LaunchJob) -> dict[str, Any]:
    """`CompileConfig`: blocks and loss, or nothing."""
    return {"enable": job.strategy["compile"], "components": ["model", "loss"]}


def _optimizer(job: LaunchJob) -> str:
    strategy = job.strategy
    narrow = strategy["optimizer_state_dtype"] == "bf16" and strategy["parameter_dtype"] == "fp32"
    group = {
        "pattern": ".*",
        "optimizer_name": OPTIMIZERS[job.workload.optimizer],
        "optimizer_kwargs": _Code('{"lr": float(os.environ["LEARNING_RATE"])}'),
    }
    shown = ", ".join(f"{key}={value if isinstance(value, _Code) else repr(value)}" for key, value in group.items())
    implementation = "fused_opt_states_bf16" if narrow else "foreach"
    return f"OptimizersContainer.Config(param_groups=[ParamGroupConfig({shown})], implementation={implementation!r})"
