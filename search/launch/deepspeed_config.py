"""DeepSpeed's own file, `ds_config.json`, and what it has no key for.

Source: deepspeedai/DeepSpeed 0.19.8 `runtime/config.py`, `runtime/zero/config.py`, `runtime/zero/offload_config.py`,
`runtime/precision_config.py`, `runtime/tensor_parallel/config.py`, `module_inject/auto_ep_config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from search.launch.hf_settings import STORED
from search.launch.job import LaunchFile, LaunchJob
from search.launch.refusals import Only, outside

CONFIG_PATH: Final = "ds_config.json"
DEEPSPEED: Final = "DeepSpeed 0.19.8"
NVME_PATH: Final = "/local_nvme"
"""As DeepSpeed's own examples call it."""
GRADIENT_CLIPPING: Final = 1.0
OPTIMIZERS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {"adam_w_mode": False}),
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
"""Contract → `optimizer.type` and parameters; 8-bit AdamW is not DeepSpeed's, a script has to bring it."""
OWN_OPTIMIZERS: Final = ("adamw", "adam", "muon")
"""Those that ZeRO has been tested with (`is_zero_supported_optimizer`)."""
HOST_OFFLOADS: Final = ("optimizer", "optimizer-and-parameters", "nvme")
PINNED: Final[Mapping[str, Any]] = {"device": "cpu", "pin_memory": True}
ON_NVME: Final[Mapping[str, Any]] = {"device": "nvme", "nvme_path": NVME_PATH, "pin_memory": True}
AIO: Final[Mapping[str, Any]] = {
    "block_size": 1048576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}
"""DeepSpeed's defaults; `ds_nvme_tune` measures better ones on the machine itself."""
LIMITS: Final = (
    Only("framework", ("deepspeed",), "these files run DeepSpeed"),
    Only("data_parallel_replicate_size", (1,), f"{DEEPSPEED} has no MiCS any more and shards over all data ranks"),
    Only("sequence_parallel", (False,), "automatic tensor parallelism does not split norms along the sequence"),
    Only("virtual_pipeline_size", (1,), "its pipeline has one chunk of layers on each stage"),
    Only("pipeline_schedule", ("1f1b",), "its pipeline has no other schedule than 1F1B"),
    Only("activation_checkpointing", ("none", "full"), "whole layers are recomputed or nothing"),
    Only("cuda_graphs", (False,), "training steps are not captured"),
    Only("gradient_as_bucket_view", (True,), "gradients have no buckets of DistributedDataParallel beside them"),
    Only("precision", ("bf16", "fp16", "fp32"), "there is no section for 8- or 4-bit computation"),
)


def config_refusals(job: LaunchJob) -> dict[str, str]:
    """Strategy field → why no key of `ds_config.json` says it."""
    return {**outside(job, LIMITS), **_dtypes(job), **_groups(job), **_offload(job)}


def _dtypes(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    precision, gradient, states = strategy["precision"], strategy["gradient_dtype"], strategy["optimizer_state_dtype"]
    found = {}
    tuning = job.workload.fine_tuning
    stored = "nf4" if tuning is not None and tuning.method == "qlora" else STORED.get(precision)
    if strategy["parameter_dtype"] != stored:
        found["parameter_dtype"] = f"with precision {precision} weights are stored in {stored}"
    if strategy["zero_stage"] == 0 and gradient != precision:
        found["gradient_dtype"] = f"without ZeRO gradients have the dtype of the weights, {precision}"
    elif gradient not in ("fp32", precision):
        found["gradient_dtype"] = f"with precision {precision} gradients are accumulated in it or in fp32"
    expected = "int8" if job.workload.optimizer == "adamw-8bit" else "fp32"
    if states != expected:
        found["optimizer_state_dtype"] = f"states of {job.workload.optimizer} beside fp32 masters are {expected}"
    return found


def _groups(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    found = {}
    if strategy["context_parallel_size"] > 1:
        found.update(
            outside(job, [Only("context_parallel_kind", ("all-to-all",), "Ulysses exchanges heads for tokens")])
        )
        if strategy["tensor_parallel_size"] > 1:
            found["context_parallel_size"] = "Ulysses' groups do not go with automatic tensor parallelism"
    if strategy["pipeline_parallel_size"] > 1:
        for name in ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size"):
            if strategy[name] > 1:
                found[name] = "beside a pipeline these groups have to be built in the model's own code (mpu)"
        if strategy["activation_checkpointing"] == "full" and strategy["checkpointed_layers"] < max(
            strategy["layers_per_stage"]
        ):
            found["checkpointed_layers"] = "its pipeline recomputes all layers of a stage or none"
    return found


def _offload(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    if strategy["offload"] == "activations" and strategy["pipeline_parallel_size"] > 1:
        return {"offload": "activations of a pipeline stay on the device"}
    if strategy["offload"] in HOST_OFFLOADS and job.workload.optimizer not in ("adamw", "adam"):
        return {"offload": f"the CPU steps Adam only, not {job.workload.optimizer}"}
    return {}


AUTO: Final[Mapping[str, Any]] = {"lr": "auto"}
"""Transformers and Accelerate put the learning rate of their own arguments there."""


def config_file(job: LaunchJob, parameters: Mapping[str, Any] = MappingProxyType({})) -> LaunchFile:
    """`ds_config.json` with every value stated; `parameters` of the optimizer besides the plan's."""
    return LaunchFile(CONFIG_PATH, json.dumps(config(job, parameters), indent=2) + "\n")


def config(job: LaunchJob, parameters: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The keys of `ds_config.json`; the learning rate is the script's."""
    strategy = job.strategy
    return {
        "train_batch_size": job.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": strategy["micro_batch_size"],
        "gradient_accumulation_steps": job.micro_batches,
        "gradient_clipping": GRADIENT_CLIPPING,
        "steps_per_print": 10,
        **_precision(strategy),
        **_optimizer(job, parameters),
        "zero_optimization": _zero(strategy),
        **_parallelism(strategy),
        **_recomputation(strategy),
        **({"aio": dict(AIO)} if strategy["offload"] == "nvme" else {}),
    }


def _precision(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Dynamic loss scaling has DeepSpeed's own defaults, stated."""
    fp16 = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
    precision = strategy["precision"]
    return {
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16", **(fp16 if precision == "fp16" else {})},
        "data_types": {"grad_accum_dtype": strategy["gradient_dtype"]},
        "communication_data_type": precision,
    }


def _optimizer(job: LaunchJob, more: Mapping[str, Any]) -> dict[str, Any]:
    optimizer = job.workload.optimizer
    untested = {} if optimizer in OWN_OPTIMIZERS else {"zero_allow_untested_optimizer": True}
    if optimizer not in OPTIMIZERS:
        return untested
    name, parameters = OPTIMIZERS[optimizer]
    return {"optimizer": {"type": name, "params": {**parameters, **more}}, **untested}


def _zero(strategy: Mapping[str, Any]) -> dict[str, Any]:
    stage = strategy["zero_stage"]
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero["overlap_comm"] = strategy["overlap_communication"]
        zero["contiguous_gradients"] = True
    if stage == 3:
        zero["zero_hpz_partition_size"] = strategy["secondary_shard_size"]
        zero["stage3_gather_16bit_weights_on_model_save"] = strategy["checkpoint_saving"] == "full"
    offload, fraction = strategy["offload"], strategy["offload_fraction"]
    place = ON_NVME if offload == "nvme" else PINNED
    if offload in HOST_OFFLOADS:
        zero["offload_optimizer"] = {**place, **({"ratio": fraction} if fraction < 1 else {})}
    if offload in ("optimizer-and-parameters", "nvme"):
        zero["offload_param"] = dict(place)
    return zero


def _parallelism(strategy: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if strategy["tensor_parallel_size"] > 1:
        found["tensor_parallel"] = {"autotp_size": strategy["tensor_parallel_size"]}
    if strategy["context_parallel_size"] > 1:
        found["sequence_parallel_size"] = strategy["context_parallel_size"]
    if strategy["expert_parallel_size"] > 1 or strategy["expert_tensor_parallel_size"] > 1:
        found["expert_parallel"] = {
            "enabled": True,
            "autoep_size": strategy["expert_parallel_size"],
            "expert_tensor_parallel_size": strategy["expert_tensor_parallel_size"],
        }
    if strategy["pipeline_parallel_size"] > 1:
        found["pipeline"] = {
            "stages": strategy["pipeline_parallel_size"],
            "layers_per_stage": list(strategy["layers_per_stage"]),
            "activation_checkpoint_interval": int(strategy["activation_checkpointing"] == "full"),
        }
    return found


def _recomputation(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """How DeepSpeed's own checkpointing recomputes; that of Transformers is switched on in the script."""
    if strategy["activation_checkpointing"] == "none":
        return {}
    return {
        "activation_checkpointing": {
            "number_checkpoints": strategy["checkpointed_layers"],
            "partition_activations": False,
            "contiguous_memory_optimization": False,
            "cpu_checkpointing": False,
        }
    }


def config_notes(job: LaunchJob) -> tuple[str, ...]:
    """What a person has to know of the file."""
    notes = [f"Written for {DEEPSPEED}.", f"gradient_clipping {GRADIENT_CLIPPING} is DeepSpeed's own default."]
    if job.strategy["offload"] == "nvme":
        notes.append(
            f"{NVME_PATH} stands for a folder on each node's NVMe; the aio values are DeepSpeed's defaults, "
            "ds_nvme_tune finds better ones on the machine."
        )
    if job.workload.optimizer == "sgd-momentum":
        notes.append("A momentum of 0.9 is the usual one; it changes neither memory nor time.")
    return tuple(notes)
