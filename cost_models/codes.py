"""Codes of violated rules and of warnings: one bit each in a uint64 column, in the order of the contract."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

CodeColumn: TypeAlias = npt.NDArray[np.uint64]

VIOLATIONS: Final = (
    "degrees_do_not_multiply_to_gpus",
    "batch_not_divisible",
    "heads_not_divisible",
    "kv_heads_not_divisible",
    "ffn_not_divisible",
    "layers_not_divisible",
    "sequence_not_divisible",
    "experts_not_divisible",
    "expert_group_not_divisible",
    "replicate_not_divisor",
    "fewer_layers_than_chunks",
    "virtual_needs_pipeline",
    "micro_batches_not_multiple_of_stages",
    "schedule_unsupported",
    "zero_stage_unsupported",
    "tensor_unsupported",
    "pipeline_unsupported",
    "context_unsupported",
    "expert_unsupported",
    "experts_need_sequence_parallel",
    "sequence_parallel_needs_tensor",
    "checkpointing_unsupported",
    "offload_unsupported",
    "offload_needs_host",
    "precision_unsupported_by_gpu",
    "precision_unsupported_by_framework",
    "attention_unsupported",
    "fine_tuning_unsupported",
    "mixed_gpus_unsupported",
    "optimizer_unsupported",
)
WARNINGS: Final = (
    "tensor_parallel_crosses_nodes",
    "expert_parallel_crosses_domain",
    "slow_link",
    "peer_to_peer_missing",
    "host_memory_short",
    "host_unknown",
    "nvme_slow",
    "odd_head_dimension",
    "fp8_without_gain",
    "weights_replicated",
    "logits_dominate",
    "experts_imbalanced",
    "near_memory_limit",
    "vocabulary_padded",
    "few_micro_batches",
    "stages_imbalanced",
    "flat_all_reduce_across_nodes",
    "extrapolated",
)


def bit(codes: tuple[str, ...], code: str) -> np.uint64:
    """The mask of one code."""
    return np.uint64(1 << codes.index(code))


def decode(codes: tuple[str, ...], mask: int) -> list[str]:
    """The codes whose bits are set, in the order of the contract."""
    return [code for position, code in enumerate(codes) if mask >> position & 1]
