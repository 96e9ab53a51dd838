"""Published configurations that the examples in the documentation are made of."""

from __future__ import annotations

from typing import Any, Final

MODEL: Final[dict[str, Any]] = {"preset": "llama-3-70b"}
CLUSTER: Final[dict[str, Any]] = {"preset": "dgx-h100", "nodes": 8}
WORKLOAD: Final[dict[str, Any]] = {
    "sequence_length": 8192,
    "global_batch_size": 128,
    "precision": "bf16",
    "optimizer": "adamw",
    "attention": "flash",
    "training_tokens": 1.0e12,
}
MEGATRON_STRATEGY: Final[dict[str, Any]] = {
    "framework": "megatron-lm",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 4,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "activation_checkpointing": "selective",
}
FSDP_STRATEGY: Final[dict[str, Any]] = {
    "framework": "fsdp2",
    "zero_stage": 3,
    "micro_batch_size": 1,
    "activation_checkpointing": "full",
}
ESTIMATE: Final[dict[str, Any]] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": WORKLOAD,
    "strategies": [MEGATRON_STRATEGY, FSDP_STRATEGY],
    "memory_confidence": 0.9,
    "detail": "full",
}
SEARCH: Final[dict[str, Any]] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "workload": WORKLOAD,
    "frameworks": ["megatron-lm", "deepspeed", "fsdp2"],
    "objective": "step_time",
    "memory_confidence": 0.9,
    "budget": {"trials": 128, "seconds": 10},
    "plans": 10,
    "seed": 0,
    "labels": {"team": "a"},
}
