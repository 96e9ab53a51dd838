"""Degrees, groups and the global batch: what has to multiply to the GPUs, and what has to divide what."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from cost_models.rules.view import Rule, View, divides, first_undivided
from cost_models.strategy import BoolColumn, IntColumn


def _degrees(view: View) -> BoolColumn:
    # In floats: four large sizes do not overflow into the right number by chance.
    product = view.tensor.astype(np.float64) * view.context * view.data * view.pipeline
    broken: BoolColumn = product != view.cluster.gpus
    return broken


def _degrees_say(view: View) -> str:
    names = ("tensor", "context", "data", "pipeline")
    sizes = [view.value(f"{name}_parallel_size") for name in names]
    product = " x ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    return f"{product} = {math.prod(sizes)}, but the cluster has {view.cluster.gpus} GPUs"


def _batch(view: View) -> BoolColumn:
    return view.workload.global_batch_size % (view.data * view.micro_batch) > 0


def _batch_says(view: View) -> str:
    return (
        f"global_batch_size {view.workload.global_batch_size} does not divide by data_parallel_size "
        f"{view.value('data_parallel_size')} x micro_batch_size {view.value('micro_batch_size')}"
    )


def _experts(view: View) -> BoolColumn | bool:
    return bool(view.dimensions.experts) and ~divides(view.dimensions.experts, view.expert)


def _experts_say(view: View) -> str:
    size = int(view.expert[0])
    return f"{first_undivided(view.dimensions.experts, size)} experts do not divide by expert_parallel_size {size}"


def _dense_ranks(view: View) -> IntColumn:
    return view.tensor * view.context * view.data


def _expert_ranks(view: View) -> IntColumn:
    return view.expert * view.expert_tensor


def _expert_group(view: View) -> BoolColumn | bool:
    return bool(view.dimensions.experts) and (_dense_ranks(view) % _expert_ranks(view) > 0)


def _expert_group_says(view: View) -> str:
    return (
        f"expert_parallel_size {view.value('expert_parallel_size')} x expert_tensor_parallel_size "
        f"{view.value('expert_tensor_parallel_size')} does not divide tensor x context x data = {_dense_ranks(view)[0]}"
    )


def _replicate(view: View) -> BoolColumn:
    return view.data % view.replicate > 0


def _replicate_says(view: View) -> str:
    return (
        f"data_parallel_replicate_size {view.value('data_parallel_replicate_size')} does not divide "
        f"data_parallel_size {view.value('data_parallel_size')}"
    )


def _replicate_experts(view: View) -> BoolColumn | bool:
    if not view.dimensions.experts:
        return False
    grouped = _dense_ranks(view) % _expert_ranks(view) == 0
    broken: BoolColumn = grouped & (view.expert > 1) & (_dense_ranks(view) // _expert_ranks(view) % view.replicate > 0)
    return broken


def _replicate_experts_say(view: View) -> str:
    return (
        f"data_parallel_replicate_size {view.value('data_parallel_replicate_size')} does not divide the "
        f"{(_dense_ranks(view) // _expert_ranks(view))[0]} ranks that hold the same experts"
    )


def _replicate_unsupported(view: View) -> BoolColumn:
    return (view.replicate > 1) & ~view.able(lambda framework: framework.replicated_shards)


def _replicate_unsupported_says(view: View) -> str:
    return f"{view.framework.name} has no replicate groups: data_parallel_replicate_size must be 1"


def _shard_ranks(view: View) -> IntColumn:
    return view.data // view.replicate * view.context


def _secondary(view: View) -> BoolColumn:
    return _shard_ranks(view) % view.secondary > 0


def _secondary_says(view: View) -> str:
    return (
        f"secondary_shard_size {view.value('secondary_shard_size')} does not divide the shard group of "
        f"{_shard_ranks(view)[0]} ranks"
    )


DEGREES: Final = (
    Rule("degrees_do_not_multiply_to_gpus", _degrees, _degrees_say),
    Rule("batch_not_divisible", _batch, _batch_says),
    Rule("experts_not_divisible", _experts, _experts_say),
    Rule("expert_group_not_divisible", _expert_group, _expert_group_says),
    Rule("replicate_not_divisor", _replicate, _replicate_says),
    # Megatron-Core parallel_state (expert-data ranks by optimizer instances), torchtitan (experts inside dp_shard).
    Rule("replicate_not_divisor", _replicate_experts, _replicate_experts_say),
    Rule("replicate_not_divisor", _replicate_unsupported, _replicate_unsupported_says),
    Rule("replicate_not_divisor", _secondary, _secondary_says),
)
