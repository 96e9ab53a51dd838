"""The YAML file of `accelerate launch` read back.

Source: as `accelerate`; keys of `deepspeed_config`, `fsdp_config`, `megatron_lm_config` and `parallelism_config` as
`accelerate config` writes them.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from search.launch.accelerate import ROTATIONS, SHARDING_STRATEGIES
from search.launch.parse_deepspeed import OFFLOADS
from search.launch.parsed import PLACE, Keys, Parsed, error, present, syntax_error

LARGEST_TEXT: Final = 100_000
"""Characters: such a file has some thousand, and YAML is read slowly."""
TYPES: Final = ("DEEPSPEED", "FSDP", "MULTI_GPU", "NO", "MEGATRON_LM")
STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""In the order of Accelerate's numbers, from 1."""
SECTIONS: Final = ("deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config", "dynamo_config")
INERT: Final = (
    *("compute_environment", "debug", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend"),
    *("same_network", "main_training_function", "gpu_ids", "enable_cpu_affinity", "num_machines"),
    *("tpu_env", "tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone", "commands", "command_file"),
    *("deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile"),
    *("deepspeed_config.gradient_clipping", "deepspeed_config.offload_optimizer_nvme_path"),
    *("deepspeed_config.offload_param_nvme_path", "fsdp_config.fsdp_version", "fsdp_config.fsdp_auto_wrap_policy"),
    *("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp_config.fsdp_sync_module_states"),
    *("fsdp_config.fsdp_use_orig_params", "dynamo_config.dynamo_mode", "dynamo_config.dynamo_use_dynamic"),
    *("dynamo_config.dynamo_use_fullgraph", "dynamo_config.dynamo_use_regional_compilation"),
    *("parallelism_config.parallelism_config_sp_backend", "parallelism_config.parallelism_config_cp_backend"),
)
AS_PRICED: Final = {
    "use_cpu": (False,),
    "downcast_bf16": (False, "no"),
    "fsdp_config.fsdp_backward_prefetch": ("BACKWARD_PRE",),
    "fsdp_config.fsdp_forward_prefetch": (False,),
    "fsdp_config.fsdp_activation_checkpointing_offload": (False,),
}


def parse(text: str) -> Parsed:
    """What the file says of strategy and workload.

    Raises:
        InvalidInput: The text is no YAML mapping, or breaks a rule of Accelerate's; with the key, or the line.
    """
    keys = Keys(load_yaml(text))
    keys.need_sections(*SECTIONS)
    kind = keys.required_choice("distributed_type", TYPES)
    if kind is None:
        raise error("distributed_type", "missing", f"must be there: one of {', '.join(TYPES)}")
    machines = keys.size("num_machines") or 1
    processes = keys.size("num_processes")
    if kind == "DEEPSPEED":
        strategy = _deepspeed(keys)
    elif kind == "FSDP":
        strategy = _fsdp(keys, machines)
    elif kind == "MEGATRON_LM":
        strategy = _megatron(keys)
    else:
        strategy = {"framework": "ddp", "zero_stage": 0}
    strategy |= _parallelism(keys)
    strategy |= _ranks(strategy, processes)
    precision = keys.choice("mixed_precision", ("bf16", "fp16", "fp8"))
    backend = keys.choice("dynamo_config.dynamo_backend", ("INDUCTOR", "inductor", "NO", "no"))
    strategy |= present(precision=precision, compile=None if backend is None else backend.upper() == "INDUCTOR")
    keys.ignore(*INERT)
    for key, values in AS_PRICED.items():
        keys.ignore_value(key, *values)
    return Parsed(strategy, present(precision=precision), keys.unmapped())


class _Loader(yaml.SafeLoader):
    """Refuses keys that are there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> dict[str, Any]:
    """A mapping, each of whose keys is there once, without aliases."""
    if len(text) > LARGEST_TEXT:
        raise syntax_error("file of Accelerate", None, f"it is longer than {LARGEST_TEXT} characters")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise syntax_error("file of Accelerate", None, "aliases (*name) are not read")
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as found:
        line = None if found.problem_mark is None else found.problem_mark.line + 1
        raise syntax_error("YAML", line, found.problem or "it cannot be read") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as found:
        raise syntax_error("YAML", None, str(found).splitlines()[0]) from None
    if not isinstance(content, dict):
        raise syntax_error("YAML", 1, f"keys with values are needed, not {type(content).__name__} ({PLACE})")
    return content


def _ranks(strategy: dict[str, Any], processes: int | None) -> dict[str, Any]:
    """Data ranks are what the other groups leave of the processes."""
    if processes is None:
        return {}
    names = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size")
    others = 1
    for name in names:
        others *= strategy.get(name, 1)
    data, rest = divmod(processes, others)
    if rest or not data:
        rule = f"must be a multiple of the {others} processes that share one replica, not {processes}"
        raise error("num_processes", "degrees_do_not_multiply_to_gpus", rule)
    return {"data_parallel_size": data}


def _deepspeed(keys: Keys) -> dict[str, Any]:
    section = "deepspeed_config"
    stage = keys.required_choice(f"{section}.zero_stage", (0, 1, 2, 3))
    split = keys.flag(f"{section}.zero3_init_flag")
    whole = keys.flag(f"{section}.zero3_save_16bit_model")
    found = {"framework": "deepspeed", **present(zero_stage=stage)}
    if split is not None and (stage == 3 or split):
        found["checkpoint_loading"] = "sharded" if split else "every-rank"
    if whole is not None and stage == 3:
        found["checkpoint_saving"] = "full" if whole else "sharded"
    places = [f"{section}.offload_{what}_device" for what in ("optimizer", "param")]
    devices = [keys.required_choice(place, ("none", "cpu", "nvme")) for place in places]
    if devices == [None, None]:
        return found
    offload = OFFLOADS.get((devices[0] or "none", devices[1] or "none"))
    if offload is None:
        for place in places:
            keys.leave(place)
        return found
    return {**found, "offload": offload}


def _fsdp(keys: Keys, machines: int) -> dict[str, Any]:
    section = "fsdp_config"
    version = keys.required_choice(f"{section}.fsdp_version", (1, 2)) or 1
    found: dict[str, Any] = {"framework": f"fsdp{version}"}
    if version == 2:
        reshard = keys.flag(f"{section}.fsdp_reshard_after_forward")
        found["zero_stage"] = 2 if reshard is False else 3
    else:
        found |= _fsdp1_sharding(keys, machines)
    offload = keys.flag(f"{section}.fsdp_offload_params")
    recomputes = keys.flag(f"{section}.fsdp_activation_checkpointing")
    kinds = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
    saved = keys.choice(f"{section}.fsdp_state_dict_type", kinds)
    first = keys.flag(f"{section}.fsdp_cpu_ram_efficient_loading")
    if offload is not None:
        found["offload"] = "optimizer-and-parameters" if offload else "none"
    if first is not None:
        found["checkpoint_loading"] = "rank0" if first else "every-rank"
    if recomputes:
        found["activation_checkpointing"] = "full"
    if saved is not None:
        found["checkpoint_saving"] = "sharded" if saved == kinds[0] else "full"
    return found


def _fsdp1_sharding(keys: Keys, machines: int) -> dict[str, Any]:
    """The strategy's name or number, under its old key or the one that it has in both versions."""
    numbers = tuple(range(1, len(STRATEGIES) + 1))
    found = [
        keys.required_choice(f"fsdp_config.{key}", (*STRATEGIES, *numbers))
        for key in ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    ]
    chosen = next((value for value in found if value is not None), STRATEGIES[0])
    name = chosen if isinstance(chosen, str) else STRATEGIES[chosen - 1]
    stage, replicated = next(meaning for meaning, known in SHARDING_STRATEGIES.items() if known == name)
    return {"zero_stage": stage, **({"data_parallel_replicate_size": machines} if replicated else {})}


def _megatron(keys: Keys) -> dict[str, Any]:
    section = "megatron_lm_config.megatron_lm"
    distributed = keys.flag(f"{section}_use_distributed_optimizer")
    recomputes = keys.flag(f"{section}_recompute_activations")
    return {
        "framework": "megatron-lm",
        **present(
            tensor_parallel_size=keys.size(f"{section}_tp_degree"),
            pipeline_parallel_size=keys.size(f"{section}_pp_degree"),
            sequence_parallel=keys.flag(f"{section}_sequence_parallelism"),
            zero_stage=None if distributed is None else int(distributed),
            activation_checkpointing="selective" if recomputes else None,
        ),
    }


def _parallelism(keys: Keys) -> dict[str, Any]:
    section = "parallelism_config.parallelism_config"
    tensor, parts = keys.size(f"{section}_tp_size"), keys.size(f"{section}_cp_size")
    ulysses = keys.size(f"{section}_sp_size")
    rotation = keys.choice(f"{section}_cp_comm_strategy", tuple(ROTATIONS.values()))
    replicas = keys.size(f"{section}_dp_replicate_size")
    keys.size(f"{section}_dp_shard_size")
    kind = next((name for name, value in ROTATIONS.items() if value == rotation), None)
    if ulysses is not None and ulysses > 1:
        parts, kind = ulysses, "all-to-all"
    return present(
        tensor_parallel_size=tensor,
        context_parallel_size=parts,
        context_parallel_kind=kind if parts is not None and parts > 1 else None,
        data_parallel_replicate_size=replicas,
    )
