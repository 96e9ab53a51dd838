"""Target `accelerate`: the YAML file of `accelerate launch` for DeepSpeed, FSDP2, FSDP1 and DistributedDataParallel.

Source: huggingface/accelerate 1.15 `commands/config/config_args.py`, `utils/dataclasses.py` (FSDP plugin),
`parallelism_config.py`, `utils/launch.py`.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from search.launch.deepspeed import engine_refusals
from search.launch.deepspeed_config import AUTO, CONFIG_PATH, config_file, config_notes, config_refusals
from search.launch.environment import environment, reasons
from search.launch.fsdp_refusals import loading_notes, sharded_refusals
from search.launch.hf_settings import (
    ARGUMENTS,
    NOTES,
    SCRIPT_PATH,
    STORED,
    model_refusals,
    offloaded_layers,
    script_files,
    script_refusals,
    step_words,
)
from search.launch.job import LaunchFile, LaunchFiles, LaunchJob
from search.launch.refusals import Only, outside, refuse
from search.launch.rendezvous import continued, slurm_script, start

TARGET: Final = "accelerate"
YAML_PATH: Final = "accelerate.yaml"
ACCELERATE: Final = "Accelerate 1.15.0"
FRAMEWORKS: Final = ("deepspeed", "fsdp2", "fsdp1", "ddp")
TYPES: Final = {"deepspeed": "DEEPSPEED", "fsdp2": "FSDP", "fsdp1": "FSDP", "ddp": "MULTI_GPU"}
"""framework → distributed_type; one GPU alone has the type NO."""
MIXED: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "fp32": "no"}
"""precision → mixed_precision; matrices in 8 bit are the script's own (torchao), around them it is bf16."""
SHARDING_STRATEGIES: Final = {
    (0, False): "NO_SHARD",
    (2, False): "SHARD_GRAD_OP",
    (3, False): "FULL_SHARD",
    (2, True): "HYBRID_SHARD_ZERO2",
    (3, True): "HYBRID_SHARD",
}
"""fsdp1: ZeRO stage and whether shards are replicated → fsdp_sharding_strategy."""
ROTATIONS: Final = {"all-gather": "allgather", "ring": "alltoall"}
"""context_parallel_kind → parallelism_config_cp_comm_strategy."""
_DEEPSPEED_LIMITS: Final = (
    Only("pipeline_parallel_size", (1,), "Accelerate's loop runs no PipelineModule; the target deepspeed has one"),
    Only("context_parallel_size", (1,), "the script for Accelerate has no Ulysses; the target deepspeed has it"),
)
WITHOUT_MEANING: Final = {
    "recompute_modules": "parts of layers are chosen with selective checkpointing only, which is refused",
    "expert_imbalance": "what the data and the router make of it, not a setting",
}
"""Fields that need no setting, with any of the frameworks."""


def write(job: LaunchJob) -> LaunchFiles:
    """`accelerate.yaml`, with DeepSpeed its `ds_config.json`, and a script for Hugging Face models.

    Raises:
        NotExpressible: Accelerate has no setting for some fields, each named.
    """
    framework = job.strategy["framework"]
    deepspeed = framework == "deepspeed"
    if deepspeed:
        own = {**config_refusals(job), **engine_refusals(job), **outside(job, _DEEPSPEED_LIMITS)}
    else:
        own = sharded_refusals(job)
    known = outside(job, [Only("framework", FRAMEWORKS, "Accelerate has no such engine in these files")])
    refuse(TARGET, known, own, script_refusals(job), model_refusals(job))
    files = [LaunchFile(YAML_PATH, yaml.safe_dump(config(job), sort_keys=False))]
    if deepspeed:
        files.append(config_file(job, AUTO))
    files += script_files(job, "accelerate", framework=framework, **_own_settings(job))
    variables = environment(job)
    command = continued(["accelerate", "launch", *_launch_words(job), SCRIPT_PATH, *ARGUMENTS, *step_words(job)])
    if job.cluster.nodes > 1:
        files.append(slurm_script(job, command, variables))
    return LaunchFiles(
        target=TARGET,
        files=tuple(files),
        command=start(job, command),
        environment=variables,
        notes=(
            f"Written for {ACCELERATE}.",
            *NOTES,
            *(config_notes(job) if deepspeed else loading_notes(job)),
            *reasons(job),
        ),
    )


def _launch_words(job: LaunchJob) -> list[str]:
    words = ["--config_file", YAML_PATH]
    if job.cluster.nodes == 1:
        return words
    places = {
        "--machine_rank": "$NODE_RANK",
        "--main_process_ip": "$MASTER_ADDR",
        "--main_process_port": "$MASTER_PORT",
    }
    return [*words, *(word for pair in places.items() for word in pair)]


def _own_settings(job: LaunchJob) -> dict[str, Any]:
    """What the script leaves to Accelerate or needs besides."""
    strategy = job.strategy
    own: dict[str, Any] = {"gradient_as_bucket_view": strategy["gradient_as_bucket_view"]}
    if strategy["framework"] == "deepspeed":
        return own
    if strategy["context_parallel_size"] > 1 and job.workload.attention == "flash":
        own["attention"] = "sdpa"  # torch's context parallelism knows no other attention
    if recomputes_by_fsdp(job):
        own |= {"checkpointed_layers": 0, "offloaded_layers": 0}
    own["compile"] = False  # dynamo_config compiles
    return own


def recomputes_by_fsdp(job: LaunchJob) -> bool:
    """FSDP's own wrapper recomputes all layers or none; a part of them the script chooses."""
    strategy = job.strategy
    return (
        strategy["framework"] in ("fsdp1", "fsdp2")
        and strategy["activation_checkpointing"] == "full"
        and strategy["checkpointed_layers"] == job.model.layers
    )


def config(job: LaunchJob) -> dict[str, Any]:
    """The keys of `accelerate.yaml`."""
    strategy, cluster = job.strategy, job.cluster
    framework = strategy["framework"]
    alone = framework == "ddp" and cluster.gpus == 1
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if alone else TYPES[framework],
        "num_machines": cluster.nodes,
        "num_processes": cluster.gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    if framework == "deepspeed":
        return {**keys, "deepspeed_config": _deepspeed(job), **_dynamo(job)}
    precision = strategy["precision"]
    keys["mixed_precision"] = "no" if strategy["parameter_dtype"] == STORED[precision] else MIXED[precision]
    if framework == "ddp":
        return {**keys, **_dynamo(job)}
    sharding = _fsdp2(job) if framework == "fsdp2" else _fsdp1(job)
    return {**keys, "fsdp_config": sharding, **_parallelism(job), **_dynamo(job)}


def _deepspeed(job: LaunchJob) -> dict[str, Any]:
    """Beside a file of DeepSpeed's own these are the only keys that Accelerate takes."""
    several = {"deepspeed_multinode_launcher": "standard"} if job.cluster.nodes > 1 else {}
    split = job.strategy["zero_stage"] == 3 and job.strategy["checkpoint_loading"] == "sharded"
    return {"deepspeed_config_file": CONFIG_PATH, "zero3_init_flag": split, **several}


def _dynamo(job: LaunchJob) -> dict[str, Any]:
    if not job.strategy["compile"] or job.strategy["framework"] == "deepspeed":
        return {}
    return {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default", "dynamo_use_dynamic": False}}


def _common_fsdp(job: LaunchJob) -> dict[str, Any]:
    strategy = job.strategy
    return {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": strategy["offload"] == "optimizer-and-parameters",
        "fsdp_state_dict_type": f"{'SHARDED' if strategy['checkpoint_saving'] == 'sharded' else 'FULL'}_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": strategy["checkpoint_loading"] != "every-rank",
        "fsdp_activation_checkpointing": recomputes_by_fsdp(job),
    }


def _fsdp2(job: LaunchJob) -> dict[str, Any]:
    strategy = job.strategy
    offloads = recomputes_by_fsdp(job) and offloaded_layers(job) > 0
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": strategy["zero_stage"] == 3,
        **_common_fsdp(job),
        "fsdp_activation_checkpointing_offload": offloads,
    }


def _fsdp1(job: LaunchJob) -> dict[str, Any]:
    strategy = job.strategy
    replicated = strategy["data_parallel_replicate_size"] > 1
    return {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": SHARDING_STRATEGIES[(strategy["zero_stage"], replicated)],
        **_common_fsdp(job),
        "fsdp_sync_module_states": strategy["checkpoint_loading"] != "every-rank",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_forward_prefetch": False,
        "fsdp_use_orig_params": True,
    }


def _parallelism(job: LaunchJob) -> dict[str, Any]:
    """Named groups, where there is more than the sharding of all ranks."""
    strategy = job.strategy
    replicas, parts = strategy["data_parallel_replicate_size"], strategy["context_parallel_size"]
    if strategy["framework"] != "fsdp2" or (replicas == 1 and parts == 1):
        return {}
    sizes = {"dp_replicate_size": replicas, "dp_shard_size": strategy["data_parallel_size"] // replicas}
    if parts > 1:
        sizes |= {"cp_size": parts, "cp_comm_strategy": ROTATIONS[strategy["context_parallel_kind"]]}
    return {"parallelism_config": {f"parallelism_config_{name}": value for name, value in sizes.items()}}
