"""The strategies that a running job can move to on the same GPUs, framework, precision and global batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cost_models.frameworks import framework_named
from cost_models.layouts import largest_stages
from cost_models.problem import Problem
from cost_models.strategy import StrategyTable

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "expandable_segments": ("expandable_segments",),
    "gradient_as_bucket_view": ("gradient_as_bucket_view",),
    "micro_batch_size": ("micro_batch_size",),
    "activation_checkpointing": ("activation_checkpointing", "recompute_modules", "checkpointed_layers"),
    "zero_stage": ("zero_stage", "data_parallel_replicate_size", "secondary_shard_size"),
    "tensor_parallel_size": (
        "tensor_parallel_size",
        "data_parallel_size",
        "sequence_parallel",
        "expert_tensor_parallel_size",
    ),
    "offload": ("offload", "offload_fraction"),
}
"""Fields that change together, by the field that names the change."""
FREE: Final = frozenset({"expandable_segments", "gradient_as_bucket_view"})
"""Settings that change neither the batch nor what is computed."""
RECOMPUTED_QUARTERS: Final = (1, 2, 3, 4)
"""Of a stage's layers, under full checkpointing."""


def neighbours(problem: Problem, job: StrategyTable) -> list[dict[str, Any]]:
    """All combinations of one change of each group, the job itself first; some may break a rule.

    `job`: one valid row. What a change leaves open is left out, for the framework's defaults.
    """
    own = job.row(0)
    largest = int(largest_stages(job.layouts, job.layers_per_stage, job.pipeline_parallel_size)[0])
    found = [own]
    for split in _splits(problem, own):
        for micro_batch in _micro_batches(problem, split):
            for recomputed in _checkpointing(own, largest):
                for settings in _settings(own):
                    row = split | {"micro_batch_size": micro_batch} | recomputed | settings
                    if row != own:
                        found.append(row)
    return found


def changed_groups(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of GROUPS in which two resolved strategies differ."""
    return [name for name, fields in GROUPS.items() if any(before[field] != after[field] for field in fields)]


def _splits(problem: Problem, own: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    framework = framework_named(own["framework"])
    stages = framework.pipeline_zero_stages if own["pipeline_parallel_size"] > 1 else framework.zero_stages
    offloads = {own["offload"]: own["offload_fraction"], "none": 1.0}
    if problem.cluster.host is not None:
        offloads |= {kind: 1.0 for kind in framework.offloads if kind == "optimizer" and kind not in offloads}
    for tensor in _tensor_sizes(own):
        for stage in sorted({*stages, own["zero_stage"]}):
            for offload, fraction in offloads.items():
                yield _split(own, tensor, stage) | {"offload": offload, "offload_fraction": fraction}


def _split(own: Mapping[str, Any], tensor: int, stage: int) -> dict[str, Any]:
    row = dict(own) | {"zero_stage": stage}
    if stage != own["zero_stage"]:
        # Groups of shards are a question of the old stage.
        del row["data_parallel_replicate_size"], row["secondary_shard_size"]
    if tensor != own["tensor_parallel_size"]:
        row |= {
            "tensor_parallel_size": tensor,
            "data_parallel_size": own["data_parallel_size"] * own["tensor_parallel_size"] // tensor,
            "data_parallel_replicate_size": 1,
            "secondary_shard_size": 1,
        }
        del row["sequence_parallel"], row["expert_tensor_parallel_size"]
    return row


def _tensor_sizes(own: Mapping[str, Any]) -> list[int]:
    size, data = own["tensor_parallel_size"], own["data_parallel_size"]
    return [size] + [size // 2] * (size % 2 == 0) + [size * 2] * (data % 2 == 0)


def _micro_batches(problem: Problem, row: Mapping[str, Any]) -> list[int]:
    """Sizes that keep the global batch: divisors of what a data rank has of it."""
    share, rest = divmod(problem.workload.global_batch_size, row["data_parallel_size"])
    if rest:
        return []
    low = [size for size in range(1, math.isqrt(share) + 1) if share % size == 0]
    return sorted({*low, *(share // size for size in low)})


def _checkpointing(own: Mapping[str, Any], largest: int) -> list[dict[str, Any]]:
    kept = {field: own[field] for field in GROUPS["activation_checkpointing"]}
    modes = framework_named(own["framework"]).activation_checkpointing
    fresh: list[dict[str, Any]] = [
        {"activation_checkpointing": mode, "recompute_modules": None, "checkpointed_layers": None}
        for mode in modes
        if mode != "full" and mode != own["activation_checkpointing"]
    ]
    if "full" in modes:
        counts = {math.ceil(largest * quarter / len(RECOMPUTED_QUARTERS)) for quarter in RECOMPUTED_QUARTERS}
        fresh += [
            {"activation_checkpointing": "full", "recompute_modules": None, "checkpointed_layers": count}
            for count in sorted(counts)
        ]
    return [kept, *(mode for mode in fresh if {**kept, **mode} != kept)]


def _settings(own: Mapping[str, Any]) -> list[dict[str, Any]]:
    kept = {name: own[name] for name in FREE}
    lean = {"expandable_segments": True, "gradient_as_bucket_view": True}
    if not framework_named(own["framework"]).gradients_beside_buckets:
        lean["gradient_as_bucket_view"] = own["gradient_as_bucket_view"]
    return [kept] + [lean] * (lean != kept)
