"""Makes Megatron-Core's own config classes of Megatron-LM's arguments; run where Megatron-Core is installed.

Reads from standard input a JSON list of {"options": {option: [values]}, "kinds": {option: kind}, "bridge": sections},
prints a JSON list of what the classes say of each: the pipeline layout, the recomputed modules, what overlaps. What
breaks a rule of theirs ends the script. As `core_transformer_config_from_args` of NVIDIA/Megatron-LM
`megatron/training/arguments.py` does it; what needs a GPU or Transformer Engine to be there is off. `bridge`: the
Megatron-Bridge config of the same plan, whose model provider has these classes as bases.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

import megatron.core
import megatron.core.utils
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from packaging.version import Version

DESTINATIONS = {
    "num_experts": "num_moe_experts",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "fp8_param_gather": "fp8_param",
    "norm_epsilon": "layernorm_epsilon",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "tensor_model_parallel_size": "tensor_model_parallel_size",
}
"""Argument → field, where they differ."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}
# The classes ask for the version only: 2.9 is what Megatron-Core 0.16 is released with.
megatron.core.utils._te_version = Version("2.9.0")
SAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("num_moe_experts", "moe_ffn_hidden_size", "moe_router_topk", "moe_layer_freq", "window_size"),
    *("add_bias_linear", "add_qkv_bias", "gated_linear_unit", "normalization", "qk_layernorm", "softmax_type"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel"),
    *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cpu_offloading"),
    *("cp_comm_type", "hidden_dropout", "attention_dropout", "microbatch_group_size_per_vp_stage"),
)
"""Fields that one plan has alike under both."""
NOT_HERE = ("transformer_impl", "attention_backend", "moe_permute_fusion")
"""What needs Transformer Engine or a GPU."""


def typed(kind: Any, values: list[str]) -> Any:
    """The values as argparse would store them."""
    if kind == "flag":
        return True
    if isinstance(kind, list) or kind in ("str", "pattern"):
        return values[0]
    if kind in ("str*", "str+"):
        return values
    if kind == "ints":
        return tuple(int(part) for part in values[0].split(","))
    number = int if kind.startswith("int") else float
    return number(values[0])


def arguments(job: dict[str, Any]) -> dict[str, Any]:
    """Argument → value; shell variables, which are nobody's field here, are left out."""
    return {
        name[2:].replace("-", "_"): typed(job["kinds"][name], values)
        for name, values in job["options"].items()
        if not any(value.startswith("${") for value in values)
    }


def transformer_config(given: dict[str, Any]) -> TransformerConfig:
    """The model's config, whose constructor checks it."""
    kind = MLATransformerConfig if "multi_latent_attention" in given else TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    fields = {DESTINATIONS.get(name, name): value for name, value in given.items() if name not in NOT_HERE}
    fields = {name: value for name, value in fields.items() if name in known}
    for name in ("moe_layer_freq", "window_attn_skip_freq"):
        if name in fields:
            fields[name] = eval(fields[name], {"__builtins__": {}})
    if given.get("position_embedding_type") == "rope" and kind is MLATransformerConfig:
        fields["rope_type"] = "rope"
    if "cp_comm_type" in fields:
        fields["cp_comm_type"] = given["cp_comm_type"][0]
    params = torch.bfloat16 if "bf16" in given else torch.float16 if "fp16" in given else torch.float32
    fields |= {
        "add_bias_linear": "disable_bias_linear" not in given,
        "gated_linear_unit": "swiglu" in given or "quick_geglu" in given,
        "params_dtype": params,
        "pipeline_dtype": params,
        "batch_p2p_comm": "no_overlap_p2p_communication" in given,
        "overlap_p2p_comm": "no_overlap_p2p_communication" not in given,
        "cpu_offloading": given.get("cpu_offloading_num_layers", 0) > 0,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
    }
    if "group_query_attention" not in given:
        fields.pop("num_query_groups", None)
    return kind(**fields)


def resolved(node: Any) -> Any:
    """A value of a Bridge config: what `_target_` names, called unless `_call_` is false."""
    if not isinstance(node, dict):
        return node
    module, _, name = node["_target_"].rpartition(".")
    found = getattr(importlib.import_module(module), name)
    return found if node.get("_call_", True) is False else found(*node.get("_args_", []))


def provider_config(sections: dict[str, Any]) -> TransformerConfig:
    """What the bases of the provider take of its section, and of the precision's, which is put over it."""
    latent = sections["model"]["_target_"].endswith("MLAModelProvider")
    kind = MLATransformerConfig if latent else TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)} - {"moe_permute_fusion"}
    given = {**sections["model"], **sections["mixed_precision"]}
    return kind(**{name: resolved(value) for name, value in given.items() if name in known})


def data_config(given: dict[str, Any]) -> DistributedDataParallelConfig:
    """As `get_model` of `megatron/training/training.py` fills it."""
    known = {field.name for field in dataclasses.fields(DistributedDataParallelConfig)}
    fields = {name: value for name, value in given.items() if name in known}
    return DistributedDataParallelConfig(
        **fields,
        grad_reduce_in_fp32="accumulate_allreduce_grads_in_fp32" in given,
    )


def optimizer_config(given: dict[str, Any]) -> OptimizerConfig:
    """As `get_megatron_optimizer_config` fills it. Its precision-aware kind without offload needs Transformer Engine,
    so that there only its other fields are checked."""
    known = {field.name for field in dataclasses.fields(OptimizerConfig)}
    fields = {
        name: DTYPES[value] if name.endswith("_dtype") else value for name, value in given.items() if name in known
    }
    if "optimizer_cpu_offload" not in given:
        for name in ("use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            fields.pop(name, None)
    return OptimizerConfig(**fields)


def described(job: dict[str, Any]) -> dict[str, Any]:
    """What the classes make of one job."""
    given = arguments(job)
    model, data, optimizer = transformer_config(given), data_config(given), optimizer_config(given)
    layout = model.pipeline_model_parallel_layout
    bridge = provider_config(job["bridge"])
    return {
        "version": megatron.core.__version__,
        "layers": None if layout is None else [chunk.count("t") for chunk in _chunks(layout)],
        "virtual": model.virtual_pipeline_model_parallel_size,
        "recompute_modules": model.recompute_modules,
        "overlaps": [data.overlap_grad_reduce, data.overlap_param_gather],
        "offload": optimizer.optimizer_cpu_offload,
        "differs_under_bridge": [name for name in SAME if getattr(model, name) != getattr(bridge, name)],
    }


def _chunks(layout: Any) -> list[str]:
    stages, virtual = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    names = {"decoder": "t", "embedding": "E", "loss": "L"}
    return [
        "".join(names[layer.name] for layer in layout.layout[stage][chunk])
        for chunk in range(virtual)
        for stage in range(stages)
    ]


if __name__ == "__main__":
    json.dump([described(job) for job in json.load(sys.stdin)], sys.stdout)
