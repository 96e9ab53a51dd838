"""Work of LoRA adapters (arXiv 2106.09685): two narrow products beside a frozen linear layer, bound by memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import Block, Linear, MixtureOfExperts
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.linears import adapted, routed_tokens
from cost_models.workload import FineTuning

ADAPTER_OPERATORS: Final = 5.0
"""Dropout or cast, two products, scale, add (PEFT's lora.Linear.forward)."""


@dataclass(frozen=True)
class AdapterWork:
    """Of one layer on one rank; columns (u,)."""

    weights: FloatColumn
    forward_bytes: FloatColumn
    operators: FloatColumn


def adapted_linears(block: Block, fine_tuning: FineTuning) -> list[Linear]:
    """Linear layers of a block that get an adapter."""
    part = block.feed_forward
    inside = [linear for linear in block.attention.linears if adapted(linear, fine_tuning, in_attention=True)]
    if isinstance(part, MixtureOfExperts):
        others = [*part.routed.linears, *(part.shared.linears if part.shared else ())]
    else:
        others = list(part.linears)
    return inside + [linear for linear in others if adapted(linear, fine_tuning, in_attention=False)]


def adapter_work(block: Block, cases: LayerCases, fine_tuning: FineTuning | None) -> AdapterWork:
    """All adapters of a block; none without fine-tuning."""
    weights = np.zeros(len(cases))
    moved = np.zeros(len(cases))
    operators = np.zeros(len(cases))
    if fine_tuning is None:
        return AdapterWork(weights, moved, operators)
    for linear in adapted_linears(block, fine_tuning):
        copies = linear.copies / cases.expert if linear.copies > 1 else 1.0
        rows = cases.tokens if linear.copies == 1 else routed_tokens(_mixture(block), cases)
        width = linear.out_features / (cases.tensor if linear.split == "column" else 1.0)
        depth = linear.in_features / (cases.tensor if linear.split == "row" else 1.0)
        weights = weights + copies * fine_tuning.rank * (depth + width)
        # x is read, the product written, and both sums read and written.
        moved = moved + 2.0 * rows * (depth + 3 * width)
        operators = operators + ADAPTER_OPERATORS * copies
    return AdapterWork(weights, moved, operators)


def _mixture(block: Block) -> MixtureOfExperts:
    if block.experts is None:
        raise ValueError("stacked linear layers are those of experts")
    return block.experts
