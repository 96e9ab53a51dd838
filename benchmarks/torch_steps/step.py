"""What is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.torch_steps.models import Dims


@dataclass(frozen=True)
class Step:
    """A model, a workload and a strategy in the contract's words."""

    name: str
    dims: Dims
    sequence_length: int
    ranks: int
    strategy: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    pipeline_rank: int = 0
    """Whose peak it is."""
    workload: dict[str, Any] = field(default_factory=dict)
    """What is not the contract's default: `fused_loss`, `fine_tuning`."""
    experts: dict[str, int] = field(default_factory=dict)
    """Of every block, named as the contract's `architecture` names them."""

    @property
    def micro_batch_size(self) -> int:
        return int(self.strategy.get("micro_batch_size", 1))
