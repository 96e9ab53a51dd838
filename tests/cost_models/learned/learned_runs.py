"""RunRecords for the tests of what is learned: priced by the formulas, with an error that is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.estimate import estimate
from cost_models.resolve import resolve_strategies
from cost_models.run_records import record_problem, record_strategy
from cost_models.strategy import partial_columns
from cost_models.units import GIB

NOW = "2026-11-30T00:00:00+00:00"
MODEL = {
    "architecture": {
        "layers": 8,
        "hidden_size": 1024,
        "attention_heads": 16,
        "key_value_heads": 16,
        "ffn_hidden_size": 4096,
        "gated_mlp": True,
        "vocab_size": 32000,
        "tied_embeddings": False,
    }
}


def record(
    factor: float = 1.0,
    *,
    cluster: str = "mine",
    framework: str = "megatron-lm",
    micro_batch_size: int = 1,
    sequence_length: int = 1024,
    layers: int = 8,
    figure: str = "peak_allocated_gib",
    logged: bool = True,
    gpu: str = "a100-sxm4-80gb",
    attention: str = "flash",
    **others: Any,
) -> dict[str, Any]:
    """A run of which `figure` was `factor` times what the formulas say."""
    found: dict[str, Any] = {
        "key": f"{cluster}/{framework}/{micro_batch_size}/{sequence_length}/{layers}/{figure}/{factor}",
        "model": {"architecture": MODEL["architecture"] | {"layers": layers}},
        "cluster": {"name": cluster, "nodes": 1, "gpus_per_node": 8, "gpu": gpu},
        "workload": {
            "sequence_length": sequence_length,
            "global_batch_size": 128,
            "precision": "bf16",
            "optimizer": "adamw",
            "attention": attention,
        },
        "strategy": {"framework": framework, "micro_batch_size": micro_batch_size, "activation_checkpointing": "none"},
        "measured": {},
        **others,
    }
    figures = formulas(found)
    if figure == "out_of_memory":
        # It had room for `factor` times what the formulas say is allocated, and needed more.
        room = figures["required_gib"] + (factor - 1) * figures["peak_allocated_gib"]
        found["cluster"]["gpu_free_memory_gib"] = room
        found["measured"] = {"out_of_memory": True}
    else:
        found["measured"] = {figure: factor * figures[figure]}
    return found | ({"logged_at": NOW} if logged else {})


def formulas(found: dict[str, Any]) -> dict[str, float]:
    """What the formulas alone say of a record."""
    problem = record_problem(found)
    table = resolve_strategies(problem, partial_columns([record_strategy(found)])).table
    score = estimate(problem, table, memory_confidence=0.9).scores[0]
    memory, fullest = score.memory, score.memory.fullest
    return {
        "peak_allocated_gib": float(memory.peak_allocated_bytes[fullest][0]) / GIB,
        "peak_reserved_gib": float(memory.peak_reserved_bytes[fullest][0]) / GIB,
        "peak_device_gib": float(memory.peak_bytes[fullest][0]) / GIB,
        "required_gib": float(memory.required_bytes[fullest][0]) / GIB,
        "step_seconds": float(score.time.step_seconds[0]),
    }


def many(factors: list[float] | np.ndarray[Any, Any], **others: Any) -> list[dict[str, Any]]:
    """Runs that differ in sequence and micro-batch."""
    return [
        record(float(factor), micro_batch_size=2 ** (index % 4), sequence_length=512 * (1 + index // 4), **others)
        for index, factor in enumerate(factors)
    ]
