"""Muon's orthogonalisation: five Newton-Schulz steps on whole matrices (arXiv 2502.16982, sections 2.1 and 2.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from cost_models.architecture import Block, Linear
from cost_models.problem import Problem
from cost_models.time.device import Device
from cost_models.time.operators import Gemm, gemm_seconds

STEPS: Final = 5
"""Keller Jordan's Muon; Megatron-Core's --muon-num-ns-steps."""
ELEMENT_BYTES: Final = 2.0
"""The iteration runs in bf16."""


def dense_and_routed_seconds(block: Block, device: Device) -> tuple[float, float]:
    """On one rank that orthogonalises all matrices of a block: those of the dense layout, and all experts'.

    Tensor ranks gather a matrix and each works on the whole of it (Megatron-Core's muon_tp_mode `duplicated`).
    """
    dense = sum(matrix_seconds(w, device) for w in block.linears if w.copies == 1)
    routed = sum(matrix_seconds(w, device) * w.copies for w in block.linears if w.copies > 1)
    return dense, routed


def longest_seconds(problem: Problem, device: Device, *, routed: bool) -> float:
    """The largest matrix: ranks share the work matrix by matrix, so that no step is shorter."""
    linears: Iterable[Linear] = (w for block in problem.model.blocks for w in block.linears)
    return max((matrix_seconds(w, device) for w in linears if (w.copies > 1) == routed), default=0.0)


def step_products(rows: int, columns: int) -> Gemm:
    """X Xᵀ, A² and B X, with m the shorter side: 4 m² n + 2 m³ FLOP a step."""
    m, n = sorted((float(rows), float(columns)))
    return Gemm(m=np.full(3, m), n=np.array([m, m, n]), k=np.array([n, m, m]), batch=np.ones(3))


def matrix_seconds(linear: Linear, device: Device) -> float:
    """Products of one matrix at the rate of 16-bit products of their shape."""
    rate = np.array([device.half_rate()])
    products = step_products(linear.in_features, linear.out_features)
    seconds = gemm_seconds(products, rate, np.array([ELEMENT_BYTES]), device)
    return STEPS * float(seconds.sum())
