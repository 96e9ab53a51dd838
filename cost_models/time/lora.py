"""Work of LoRA adapters (arXiv 2106.09685): two narrow products beside a frozen linear layer, and the sum of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.adapters import adapted_linears
from cost_models.architecture import Block, Linear, MixtureOfExperts
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.device import Device
from cost_models.time.linears import MERGED, routed_rows
from cost_models.time.operators import Gemm, gemm_seconds
from cost_models.workload import FineTuning

ADAPTER_OPERATORS: Final = 5.0
"""Dropout or cast, two products, scale, add (PEFT's lora.Linear.forward)."""
SUM_BYTES: Final = 10.0
"""Per output element: the adapter's product scaled (read, write) and added (two reads, a write), in 16 bit."""
GRADIENT_SUM_BYTES: Final = (4.0, 6.0)
"""Backward, per output element (scaled: read, write) and per input element (added to the frozen path's gradient)."""


@dataclass(frozen=True)
class AdapterWork:
    """Of one layer on one rank; columns (u,)."""

    weights: FloatColumn
    forward: FloatColumn
    input_gradient: FloatColumn
    weight_gradient: FloatColumn
    operators: FloatColumn

    def __add__(self, other: AdapterWork) -> AdapterWork:
        return AdapterWork(
            self.weights + other.weights,
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
            self.operators + other.operators,
        )


def adapter_work(
    block: Block, imbalance: float, cases: LayerCases, fine_tuning: FineTuning | None, device: Device
) -> AdapterWork:
    """All adapters of a block; none without fine-tuning."""
    total = AdapterWork(*(np.zeros(len(cases)),) * 5)
    if fine_tuning is not None:
        linears = adapted_linears(block, fine_tuning)
        for linear in linears:
            outputs = _outputs(linear, linears, cases)
            total = total + _adapter(linear, outputs, block, imbalance, cases, float(fine_tuning.rank), device)
    return total


def _outputs(linear: Linear, adapted: Sequence[Linear], cases: LayerCases) -> FloatColumn:
    """Outputs of the adapter beside a matrix; where matrices are one the first has theirs too, and the others none."""
    own = np.full(len(cases), float(linear.out_features))
    group = next((names for names in MERGED if linear.name in names), ())
    members = [other for other in adapted if other.name in group]
    if len(members) < 2:
        return own
    together = float(sum(member.out_features for member in members)) if linear is members[0] else 0.0
    return np.where(cases.fact("merged_projections"), together, own)


def _adapter(
    linear: Linear,
    outputs: FloatColumn,
    block: Block,
    imbalance: float,
    cases: LayerCases,
    rank: float,
    device: Device,
) -> AdapterWork:
    ones = np.ones(len(cases))
    if linear.copies > 1:
        mixture = _mixture(block)
        copies, split = mixture.experts / cases.expert, cases.expert_tensor
        rows = routed_rows(mixture, imbalance, cases)
    else:
        copies, split, rows = ones, cases.tensor, cases.tokens
    copies = np.where(outputs > 0, copies, 0.0)
    width = outputs / (split if linear.split == "column" else ones)
    depth = linear.in_features / (split if linear.split == "row" else ones)
    narrow = ones * rank
    # Adapters stay in 16 bit beside weights in fp8 or NF4.
    rate, element = device.wide_rate(cases.table.precision), np.full(len(cases), 2.0)

    def products(*shapes: tuple[FloatColumn, FloatColumn, FloatColumn]) -> FloatColumn:
        seconds: FloatColumn = sum(
            (gemm_seconds(Gemm(m, n, k, copies), rate, element, device) for m, n, k in shapes), np.zeros(len(cases))
        )
        return seconds

    read, written = copies * rows * depth, copies * rows * width
    gradient_sums = GRADIENT_SUM_BYTES[0] * written + GRADIENT_SUM_BYTES[1] * read
    return AdapterWork(
        weights=copies * rank * (depth + width),
        forward=products((rows, narrow, depth), (rows, width, narrow)) + device.memory_seconds(SUM_BYTES * written),
        input_gradient=products((rows, narrow, width), (rows, depth, narrow)) + device.memory_seconds(gradient_sums),
        weight_gradient=products((width, narrow, rows), (narrow, depth, rows)),
        operators=ADAPTER_OPERATORS * copies,
    )


def _mixture(block: Block) -> MixtureOfExperts:
    if block.experts is None:
        raise ValueError("stacked linear layers are those of experts")
    return block.experts
