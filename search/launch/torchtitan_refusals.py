"""What torchtitan has no setting for, field by field.

Source: as `torchtitan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from search.launch.job import LaunchJob
from search.launch.refusals import Only, outside

SCHEDULES: Final = {
    ("1f1b", 1): "1F1B",
    ("gpipe", 1): "GPipe",
    ("zero-bubble", 2): "ZBVZeroBubble",
}
"""pipeline_schedule and chunks on a rank → torch's name; `interleaved` has one for any number of chunks."""
INTERLEAVED: Final = "Interleaved1F1B"
FP8_RECIPES: Final = ("rowwise", "mxfp8")
_LIMITS: Final = (
    Only("framework", ("fsdp2",), "torchtitan runs PyTorch's fully_shard"),
    Only("secondary_shard_size", (1,), "weights have no second copy"),
    Only("zero_stage", (0, 2, 3), "there is no sharding of states alone"),
    Only("offload", ("none", "optimizer-and-parameters"), "weights and states are offloaded together, or nothing"),
    Only("offload_fraction", (1.0,), "all weights and states are offloaded or none"),
    Only("precision", ("bf16", "fp8", "nvfp4", "fp32"), "mixed precision is in bf16, without a loss scale"),
    Only("parameter_dtype", ("fp32", "bf16"), "training.dtype is float32 or bfloat16"),
    Only("overlap_communication", (True,), "FSDP always prefetches and reduces on its own streams"),
    Only("kernels", ("partly-fused",), "norms are fused and activations are not, with or without compilation"),
    Only("gradient_as_bucket_view", (True,), "FSDP has no buckets beside its gradients"),
    Only("checkpoint_loading", ("sharded",), "each rank reads its own part (distributed checkpoint)"),
    Only("checkpoint_saving", ("sharded",), "each rank writes its own part (distributed checkpoint)"),
)
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "recompute_modules": "its selective checkpointing has one policy for operators, which modules do not choose",
    "expert_imbalance": "what the data and the router make of it, not a setting",
}
"""Fields that need no setting."""


def strategy_refusals(job: LaunchJob) -> dict[str, str]:
    """Field of strategy or workload → why torchtitan does not say it."""
    found = {**outside(job, _LIMITS), **_pipeline(job), **_groups(job), **_dtypes(job), **_workload(job)}
    if job.strategy["checkpointed_layers"] < _recomputed_at_most(job):
        found["checkpointed_layers"] = "all layers are recomputed or none"
    return found


def schedule(strategy: Mapping[str, Any]) -> str | None:
    """pipeline_parallel_schedule; None: there is none."""
    chunks = strategy["virtual_pipeline_size"]
    if strategy["pipeline_schedule"] == "interleaved":
        return INTERLEAVED if chunks > 1 else None
    return SCHEDULES.get((strategy["pipeline_schedule"], chunks))


def _recomputed_at_most(job: LaunchJob) -> int:
    strategy = job.strategy
    if strategy["activation_checkpointing"] == "none":
        return 0
    stages: int = strategy["pipeline_parallel_size"]
    layers: list[int] = strategy["layers_per_stage"]
    return max(sum(layers[stage::stages]) for stage in range(stages))


def _pipeline(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    found = {}
    if strategy["pipeline_parallel_size"] == 1:
        found.update(outside(job, [Only("virtual_pipeline_size", (1,), "there is no pipeline to interleave")]))
        found.update(outside(job, [Only("pipeline_schedule", ("1f1b",), "there is no pipeline to schedule")]))
        if list(strategy["layers_per_stage"]) != [job.model.layers]:
            found["layers_per_stage"] = "all layers are on one stage without a pipeline"
    elif schedule(strategy) is None:
        chunks = strategy["virtual_pipeline_size"]
        found["pipeline_schedule"] = f"torch has no {strategy['pipeline_schedule']} with {chunks} chunks on a rank"
    return found


def _groups(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    found = {}
    if strategy["context_parallel_size"] > 1:
        found.update(
            outside(job, [Only("context_parallel_kind", ("all-gather",), "FlexAttention gathers keys and values")])
        )
    if strategy["tensor_parallel_size"] == 1:
        found.update(outside(job, [Only("sequence_parallel", (False,), "it is a part of tensor parallelism")]))
    found.update(
        outside(job, [Only("expert_tensor_parallel_size", (1,), "experts borrow tensor ranks and stay whole")])
    )
    if strategy["zero_stage"] == 0:
        found.update(
            outside(job, [Only("data_parallel_replicate_size", (1,), "without shards every rank is a replica")])
        )
    if strategy["cuda_graphs"] and (strategy["pipeline_parallel_size"] > 1 or strategy["expert_parallel_size"] > 1):
        found["cuda_graphs"] = "steps with a pipeline or with exchanged experts are not captured"
    return found


def _dtypes(job: LaunchJob) -> dict[str, str]:
    strategy = job.strategy
    stored, precision = strategy["parameter_dtype"], strategy["precision"]
    found = {}
    if strategy["gradient_dtype"] != stored:
        found["gradient_dtype"] = f"gradients of {stored} weights are in {stored} too"
    states = {stored} | ({"bf16"} if job.workload.optimizer in ("adamw", "adam") else set())
    if strategy["optimizer_state_dtype"] not in states:
        found["optimizer_state_dtype"] = f"states for {stored} weights are in {' or '.join(sorted(states))}"
    if precision == "fp32" and stored != "fp32":
        found["parameter_dtype"] = "fp32 computation has fp32 weights"
    if precision == "fp8" and strategy["fp8_recipe"] not in FP8_RECIPES:
        known = " and ".join(FP8_RECIPES)
        found["fp8_recipe"] = f"its converters know {known} (it is {strategy['fp8_recipe']!r})"
    return found


def _workload(job: LaunchJob) -> dict[str, str]:
    workload = job.workload
    found = {}
    if workload.optimizer not in ("adamw", "adam"):
        found["optimizer"] = f"it has Adam and AdamW for all weights, not {workload.optimizer}"
    if workload.attention != "flash":
        found["attention"] = "language models have fused attention only (FlexAttention)"
    if workload.dropout:
        found["dropout"] = "its models have no dropout"
    if workload.fine_tuning is not None:
        found["fine_tuning"] = "its LoRA wraps projections that are fused, not the planned ones"
    return found
