"""`ds_config.json` read back, one's own or one that was written here.

Source: as `deepspeed_config`; MiCS as DeepSpeed had it before 0.19.
"""

from __future__ import annotations

import json
from typing import Any, Final

from search.launch.parsed import Keys, Parsed, error, present, syntax_error

FRAMEWORK: Final = "deepspeed"
OFFLOADS: Final = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("cpu", "cpu"): "optimizer-and-parameters",
    ("nvme", "nvme"): "nvme",
}
"""Devices of optimizer and parameters → contract."""
DTYPES: Final = ("fp32", "bf16", "fp16")
SECTIONS: Final = (
    *("zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param", "bf16", "fp16"),
    *("optimizer", "optimizer.params", "activation_checkpointing", "pipeline", "tensor_parallel", "expert_parallel"),
    "data_types",
)
INERT: Final = (
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "gradient_clipping"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "dataloader_drop_last", "disable_python_gc"),
    *("prescale_gradients", "gradient_predivide_factor", "timers.", "scheduler.", "aio.", "checkpoint."),
    *("tensorboard.", "wandb.", "comet.", "csv_monitor.", "flops_profiler.", "comms_logger.", "monitor_config."),
    *("fp16.auto_cast", "fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis"),
    *("fp16.consecutive_hysteresis", "fp16.min_loss_scale", "bf16.check_grad_overflow"),
    *("optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay"),
    *("optimizer.params.bias_correction", "optimizer.params.amsgrad", "pipeline.seed_layers", "pipeline.partition"),
    *("activation_checkpointing.profile", "activation_checkpointing.synchronize_checkpoint_boundary"),
    *(f"zero_optimization.offload_{what}.{key}" for what in ("optimizer", "param") for key in ("nvme_path",)),
    *("zero_optimization.ignore_unused_parameters", "zero_optimization.round_robin_gradients"),
    *("zero_optimization.load_from_fp32_weights", "zero_optimization.elastic_checkpoint"),
    *("zero_optimization.mics_hierarchical_params_gather", "zero_optimization.log_trace_cache_warnings"),
)
AS_PRICED: Final = {
    "zero_optimization.contiguous_gradients": (True,),
    "zero_optimization.reduce_scatter": (True,),
    "zero_optimization.allgather_partitions": (True,),
    "zero_optimization.zero_quantized_weights": (False,),
    "zero_optimization.zero_quantized_gradients": (False,),
    "zero_optimization.offload_optimizer.pin_memory": (True,),
    "zero_optimization.offload_param.pin_memory": (True,),
    "activation_checkpointing.partition_activations": (False,),
    "activation_checkpointing.contiguous_memory_optimization": (False,),
    "activation_checkpointing.cpu_checkpointing": (False,),
    "bf16.bf16_master_weights_and_grads": (False,),
    "bf16.bf16_optimizer_states": (False,),
    "bf16.immediate_grad_update": (False,),
    "fp16.fp16_master_weights_and_grads": (False,),
    "compile.deepcompile": (False,),
    "torch_autocast.enabled": (False,),
    "amp.enabled": (False,),
}
"""Keys whose other values cost memory or time that no field stands for."""


def parse(text: str) -> Parsed:
    """What the file says of strategy and workload.

    Raises:
        InvalidInput: The text is no JSON object, or breaks a rule of DeepSpeed's; with the key, or the line.
    """
    keys = Keys(load_json(text))
    keys.need_sections(*SECTIONS)
    stage = keys.required_choice("zero_optimization.stage", (0, 1, 2, 3)) or 0
    precision, dtypes = _precision(keys)
    batch, workload = _batch(keys)
    strategy = {
        "framework": FRAMEWORK,
        "zero_stage": stage,
        **dtypes,
        **batch,
        **_sharding(keys, stage, batch.get("data_parallel_size")),
        **_offload(keys),
        **_parallelism(keys),
        **_recomputation(keys),
    }
    workload |= present(precision=precision, optimizer=_optimizer(keys))
    keys.ignore(*INERT)
    for key, values in AS_PRICED.items():
        keys.ignore_value(key, *values)
    if precision is not None:
        keys.ignore_value("communication_data_type", precision)
    return Parsed(strategy, workload, keys.unmapped())


def load_json(text: str) -> dict[str, Any]:
    """An object, each of whose keys is there once."""
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as found:
        raise syntax_error("JSON", found.lineno, f"{found.msg} (column {found.colno})") from None
    except RecursionError:
        raise syntax_error("JSON", None, "it is nested too deeply") from None
    except ValueError as found:  # an integer of more digits than Python converts
        raise syntax_error("JSON", None, str(found)) from None
    if not isinstance(content, dict):
        raise syntax_error("JSON", 1, "an object {...} is needed")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise error(twice, "duplicate_key", "is there twice")
    return found


def _precision(keys: Keys) -> tuple[str | None, dict[str, Any]]:
    """Precision and the dtypes that follow from it; `auto` leaves it open."""
    enabled = {}
    for name, sections in (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16",))):
        flags = [keys.flag(f"{section}.enabled") for section in sections]
        enabled[name] = any(flags)
    gradient = keys.choice("data_types.grad_accum_dtype", DTYPES)
    if all(enabled.values()):
        raise error("fp16.enabled", "exclusive", "and bf16.enabled cannot both be true")
    chosen = next((name for name, on in enabled.items() if on), None)
    left_open = {f"{section}.enabled" for section in ("bf16", "fp16")} & set(keys.unmapped())
    if chosen is None and left_open:
        return None, present(gradient_dtype=gradient)
    precision = chosen or "fp32"
    return precision, {"precision": precision, "parameter_dtype": precision, "gradient_dtype": gradient or precision}


def _batch(keys: Keys) -> tuple[dict[str, Any], dict[str, Any]]:
    """All three numbers together tell how many data ranks there are."""
    total = keys.size("train_batch_size")
    micro = keys.size("train_micro_batch_size_per_gpu")
    accumulation = keys.size("gradient_accumulation_steps")
    data = None
    if total and micro and accumulation:
        data, rest = divmod(total, micro * accumulation)
        if rest:
            rule = f"must be a multiple of micro-batch {micro} times accumulation {accumulation}, not {total}"
            raise error("train_batch_size", "batch_not_divisible", rule)
    elif accumulation:
        keys.leave("gradient_accumulation_steps")
    return present(micro_batch_size=micro, data_parallel_size=data), present(global_batch_size=total)


def _sharding(keys: Keys, stage: int, data: int | None) -> dict[str, Any]:
    overlap = keys.flag("zero_optimization.overlap_comm")
    whole = keys.flag("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    second = keys.size("zero_optimization.zero_hpz_partition_size", 0)
    mics = keys.size("zero_optimization.mics_shard_size", -1)
    found: dict[str, Any] = {}
    if stage:
        found["overlap_communication"] = stage == 3 if overlap is None else overlap
    if stage == 3:
        found["checkpoint_saving"] = "full" if whole else "sharded"
        found["secondary_shard_size"] = max(second or 1, 1)
    if mics is not None and mics > 0:
        if data is None:
            keys.leave("zero_optimization.mics_shard_size")
        elif data % mics:
            rule = f"must divide the {data} data ranks that the batch sizes make, not be {mics}"
            raise error("zero_optimization.mics_shard_size", "replicate_not_divisor", rule)
        else:
            found["data_parallel_replicate_size"] = data // mics
    return found


def _offload(keys: Keys) -> dict[str, Any]:
    places = [f"zero_optimization.offload_{what}.device" for what in ("optimizer", "param")]
    devices = [keys.required_choice(place, ("none", "cpu", "nvme")) or "none" for place in places]
    if keys.flag("zero_optimization.cpu_offload"):  # before 0.4
        devices[0] = "cpu"
    if keys.flag("zero_optimization.cpu_offload_params") or keys.flag("zero_optimization.cpu_offload_param"):
        devices[1] = "cpu"
    offload = OFFLOADS.get((devices[0], devices[1]))
    if offload is None:
        for place in places:
            keys.leave(place)
        return {}
    fraction = keys.share("zero_optimization.offload_optimizer.ratio")
    return {"offload": offload, **present(offload_fraction=fraction)}


def _parallelism(keys: Keys) -> dict[str, Any]:
    tensor = keys.size("tensor_parallel.autotp_size", 0)
    context = keys.size("sequence_parallel_size")
    found = present(
        tensor_parallel_size=max(tensor, 1) if tensor is not None else None,
        context_parallel_size=context,
        context_parallel_kind="all-to-all" if context is not None and context > 1 else None,
        pipeline_parallel_size=keys.size("pipeline.stages"),
        layers_per_stage=keys.sizes("pipeline.layers_per_stage"),
    )
    experts = keys.size("expert_parallel.autoep_size")
    expert_tensor = keys.size("expert_parallel.expert_tensor_parallel_size")
    if keys.flag("expert_parallel.enabled"):
        found |= present(expert_parallel_size=experts, expert_tensor_parallel_size=expert_tensor)
    return found


def _recomputation(keys: Keys) -> dict[str, Any]:
    """The section says how DeepSpeed's own function recomputes; that it is called, a number of checkpoints says."""
    layers = keys.size("activation_checkpointing.number_checkpoints")
    interval = keys.size("pipeline.activation_checkpoint_interval", 0)
    if layers is None and not interval:
        return {}
    return {"activation_checkpointing": "full", **present(checkpointed_layers=layers)}


def _optimizer(keys: Keys) -> str | None:
    name = keys.choice("optimizer.type", _spellings("AdamW", "Adam", "SGD", "Adafactor", "Muon"))
    decoupled = keys.flag("optimizer.params.adam_w_mode")
    momentum = keys.share("optimizer.params.momentum")
    if name is None:
        return None
    lower = str(name).lower()
    if lower == "adam":
        return "adam" if decoupled is False else "adamw"
    if lower == "sgd":
        return "sgd-momentum" if momentum else "sgd"
    return lower


def _spellings(*names: str) -> tuple[str, ...]:
    """DeepSpeed lowers the names of its own optimizers before it looks."""
    return tuple(spelling for name in names for spelling in (name, name.lower(), name.upper()))
