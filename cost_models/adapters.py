"""Which matrices LoRA puts adapters beside: one answer for weights, activations, FLOP and seconds."""

from __future__ import annotations

from typing import Final

from cost_models.architecture import Block, Linear
from cost_models.workload import FineTuning

TARGETS: Final = {
    "attention": frozenset({"q", "k", "v", "o", "qkv", "q_down", "q_up", "kv_down", "kv_up"}),
    "attention-qv": frozenset({"q", "v", "qkv", "q_up", "kv_up"}),
}
"""Canonical names of each target. In latent attention queries and values come out of the up-projections."""
NEVER_ADAPTED: Final = frozenset({"router", "shared_gate"})
"""`all-linear` means every other matrix of the blocks."""


def is_adapted(name: str, tuning: FineTuning) -> bool:
    """Whether LoRA puts an adapter beside a matrix."""
    if tuning.target == "all-linear":
        return name not in NEVER_ADAPTED
    return name in TARGETS[tuning.target]


def keeps_input(name: str, tuning: FineTuning | None) -> float:
    """1 where a matrix keeps its input for a gradient, its own or its adapter's; 0 where it is frozen."""
    return 1.0 if tuning is None or is_adapted(name, tuning) else 0.0


def adapted_linears(block: Block, tuning: FineTuning) -> tuple[Linear, ...]:
    """Matrices of a block that get an adapter."""
    return tuple(linear for linear in block.linears if is_adapted(linear.name, tuning))
