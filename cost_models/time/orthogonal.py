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


def matrix_flops(rows: int, columns: int) -> float:
    """X Xᵀ and B X: 2 m² n each; A²: 2 m³ (m the shorter side)."""
    short, long = sorted((float(rows), float(columns)))
    return STEPS * (4 * short**2 * long + 2 * short**3)


def matrix_seconds(linear: Linear, device: Device) -> float:
    """Products of one matrix at the rate of 16-bit products of their shape."""
    short, long = sorted((float(linear.in_features), float(linear.out_features)))
    peaks = device.gpu.peak_flops_per_s
    rate = np.array([peaks.get("bf16", peaks.get("fp16", np.nan)) * device.generation.gemm])
    one, m, n = np.ones(1), np.array([short]), np.array([long])
    products = (Gemm(m, m, n, one), Gemm(m, m, m, one), Gemm(m, n, m, one))
    seconds = sum(float(gemm_seconds(shape, rate, np.array([ELEMENT_BYTES]), device)[0]) for shape in products)
    return STEPS * seconds
