"""What a correction of memory may depend on: the analytical parts as shares of the peak, the layout, the setting.

No layers and no hidden size: they are the model's name, and a correction that knows it has learned the model by heart.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

import numpy as np

from cost_models.architecture import FeedForward, ModelArchitecture
from cost_models.corrections import STATISTICS
from cost_models.problem import Problem
from cost_models.results import MEMORY_PARTS, MemoryEstimate
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable, dtype_bytes
from cost_models.units import GIB

SIZES: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "expert_parallel_size",
    "micro_batch_size",
)
FEATURES: Final = (
    *(f"{part} / peak" for part in MEMORY_PARTS),
    *(f"log2 {size}" for size in SIZES),
    "log2 sequence_length",
    "log2 GPU memory GiB",
    "log2 analytical peak GiB",
    "zero_stage",
    "selective checkpointing",
    "full checkpointing",
    "eager attention",
    "kernels",
    "fine-tuning",
    "log2 bytes of a stored weight",
    "sequence_parallel",
    "fused_loss",
    "expandable_segments",
    "offloaded states",
    "first stage",
    "last stage",
    "log2 (1 + experts)",
    "latent attention",
    "layer norm",
    "gated feed-forward",
    "framework",
)
"""Columns of `stage_features`, in order."""

SCHEMA: Final = hashlib.sha256(json.dumps([*FEATURES, *STATISTICS]).encode()).hexdigest()[:16]
"""Names, order and units: a model fitted on others is refused."""
_METHODS: Final = {"lora": 1.0, "qlora": 2.0}


def stage_features(
    problem: Problem, table: StrategyTable, memory: MemoryEstimate, stage_rows: IntColumn
) -> FloatColumn:
    """(n, f) of one stage row of each strategy, by FEATURES."""
    peak = memory.peak_bytes[stage_rows]
    workload, tuning = problem.workload, problem.workload.fine_tuning
    stages = memory.stages
    columns = (
        *(memory.parts[part][stage_rows] / peak for part in MEMORY_PARTS),
        *(np.log2(getattr(table, size)) for size in SIZES),
        np.log2(workload.sequence_length),
        np.log2(problem.cluster.gpu.memory_bytes / GIB),
        np.log2(peak / GIB),
        table.zero_stage,
        table.is_choice("activation_checkpointing", "selective"),
        table.is_choice("activation_checkpointing", "full"),
        workload.attention == "eager",
        table.kernels,
        0.0 if tuning is None else _METHODS[tuning.method],
        np.log2(dtype_bytes(table.parameter_dtype)),
        table.sequence_parallel,
        workload.fused_loss,
        table.expandable_segments,
        table.offloads_states,
        stages.first[stage_rows],
        stages.last[stage_rows],
        *_kind(problem.model),
        table.framework,
    )
    features = np.empty((len(table), len(FEATURES)))
    for index, column in enumerate(columns):
        features[:, index] = column
    return features


def _kind(model: ModelArchitecture) -> tuple[float, float, float, float]:
    """What the blocks are made of, not how large they are."""
    experts = [block.experts.experts for block in model.blocks if block.experts is not None]
    plain = [block.feed_forward for block in model.blocks if block.experts is None]
    gated = any(part.gated for part in plain if isinstance(part, FeedForward)) if plain else True
    latent = any(block.attention.latent is not None for block in model.blocks)
    return np.log2(1.0 + max(experts, default=0)), float(latent), float(model.norm == "layernorm"), float(gated)


def stage_figures(memory: MemoryEstimate, stage_rows: IntColumn) -> FloatColumn:
    """(n, 3) analytical bytes by STATISTICS."""
    figures: FloatColumn = np.stack(
        [
            memory.peak_allocated_bytes[stage_rows],
            memory.peak_reserved_bytes[stage_rows],
            memory.peak_bytes[stage_rows],
        ],
        axis=1,
    )
    return figures
