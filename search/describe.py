"""A strategy in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(strategy: Mapping[str, Any]) -> str:
    """A resolved strategy, sizes of 1 left out."""
    words = [str(strategy["framework"])]
    for name, short in (
        ("tensor_parallel_size", "TP"),
        ("context_parallel_size", "CP"),
        ("pipeline_parallel_size", "PP"),
        ("virtual_pipeline_size", "VPP"),
        ("expert_parallel_size", "EP"),
        ("data_parallel_size", "DP"),
    ):
        if strategy[name] > 1:
            words.append(f"{short}{strategy[name]}")
    words.append(f"ZeRO-{strategy['zero_stage']}")
    details = [f"micro-batch {strategy['micro_batch_size']}"]
    if strategy["data_parallel_replicate_size"] > 1:
        details.insert(0, f"{strategy['data_parallel_replicate_size']} replicas of the shards")
    mode = strategy["activation_checkpointing"]
    details.append("no checkpointing" if mode == "none" else f"{mode} checkpointing")
    if mode == "full":
        details[-1] += f" of {_layers(strategy['checkpointed_layers'])} a stage"
    if strategy["offload"] != "none":
        details.append(f"offload of {strategy['offload']} ({strategy['offload_fraction']:.0%})")
    chunks = strategy["layers_per_stage"]
    if len(set(chunks)) > 1:
        details.append(
            f"{min(chunks)} to {max(chunks)} layers a chunk, {chunks[0]} on the first, {chunks[-1]} on the last"
        )
    return f"{' '.join(words)}, {', '.join(details)}"


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"
