"""What the memory and the time model answer: columns of bytes and seconds, broken down into parts that add up.

n = strategies, m = stage rows (pairs of a strategy and one of its pipeline stages, see `stages.StageRows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, IntColumn

MEMORY_PARTS: Final = (
    "parameters",
    "gradients",
    "optimizer_states",
    "activations",
    "logits",
    "communication_buffers",
    "framework_overhead",
    "fragmentation",
)
TIME_PARTS: Final = (
    "forward",
    "backward",
    "recompute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_communication",
    "pipeline_bubble",
    "data_parallel",
    "optimizer",
    "offload",
)
PEAK_MOMENTS: Final = ("forward", "loss", "backward", "optimizer")
HOST_PARTS: Final = ("steady", "load_peak", "checkpoint_peak")


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory of the fullest rank of each stage, at the moment of its peak."""

    stages: StageRows
    parts: Mapping[str, FloatColumn]
    """By MEMORY_PARTS, (m,) bytes live at the stage's peak; they add up to `peak_bytes`."""
    peak_allocated_bytes: FloatColumn
    """(m,) as torch.cuda.max_memory_allocated."""
    peak_reserved_bytes: FloatColumn
    """(m,) as torch.cuda.max_memory_reserved."""
    peak_bytes: FloatColumn
    """(m,) as the device shows: reserved, context and communicators."""
    required_bytes: FloatColumn
    """(m,) what must fit: like `peak_bytes`, without the cached blocks that the allocator can give back."""
    peak_moment: IntColumn
    """(m,) index into PEAK_MOMENTS."""
    fullest: IntColumn
    """(n,) index into the stage rows: the stage with the highest `peak_bytes` of each strategy."""
    activation_bytes_per_layer: FloatColumn
    """(n,) saved for backward by one middle block for one micro-batch."""
    device_load_peak_bytes: FloatColumn
    """(n,) while the model and the optimizer are set up."""
    host_bytes_per_node: Mapping[str, FloatColumn]
    """By HOST_PARTS, (n,)."""
    nvme_bytes_per_node: FloatColumn
    """(n,)."""
    relative_error: FloatColumn
    """(n,) standard deviation of log(measured / predicted)."""

    @property
    def most_required_bytes(self) -> FloatColumn:
        """(n,) what must fit on the stage that needs most: not always the one that shows the highest peak."""
        most: FloatColumn = np.maximum.reduceat(self.required_bytes, self.stages.start)
        return most


@dataclass(frozen=True)
class MemoryNeeds:
    """n strategies: what decides whether they fit, as in `MemoryEstimate`."""

    peak_bytes: FloatColumn
    """Of the fullest stage."""
    most_required_bytes: FloatColumn
    device_load_peak_bytes: FloatColumn
    host_bytes_per_node: Mapping[str, FloatColumn]
    """By HOST_PARTS."""
    nvme_bytes_per_node: FloatColumn
    relative_error: FloatColumn


@dataclass(frozen=True)
class TimeEstimate:
    """One optimizer step of steady training, seen from the slowest stage."""

    parts: Mapping[str, FloatColumn]
    """By TIME_PARTS, (n,) exposed seconds; they add up to `step_seconds`."""
    step_seconds: FloatColumn
    model_flops: FloatColumn
    """(n,) FLOP of the whole step that the model needs (all GPUs), attention not causal-halved."""
    hardware_flops: FloatColumn
    """(n,) FLOP of the whole step including recomputation."""
    peak_flops_per_s: FloatColumn
    """(n,) dense peak of one GPU at the strategy's precision: what mfu is taken of."""


def step_seconds_of(parts: Mapping[str, FloatColumn]) -> FloatColumn:
    """The step: all parts together."""
    total = parts[TIME_PARTS[0]].copy()
    for name in TIME_PARTS[1:]:  # in place: a sum over a list copies every column first
        total += parts[name]
    return total
