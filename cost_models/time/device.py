"""One GPU as the operators see it: peaks of each case's precision, memory bandwidth, efficiencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from cost_models.cluster import Gpu
from cost_models.strategy import PRECISIONS, FloatColumn, IntColumn
from cost_models.time.coefficients import Coefficients, GenerationCoefficients, KernelCoefficients

LINEAR_PEAK: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "nvfp4": "fp4", "fp32": "fp32"}
"""Which peak bounds the linear layers of the blocks. fp32: PyTorch leaves TF32 off for matrix multiplications."""
WIDE_PEAK: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "nvfp4": "bf16", "fp32": "fp32"}
"""Attention, router and head stay in 16 bit under fp8 and nvfp4 (Transformer Engine, torchao)."""


@dataclass(frozen=True)
class Device:
    """A GPU and how well its generation uses it."""

    gpu: Gpu
    kernels: KernelCoefficients
    generation: GenerationCoefficients

    def linear_peak(self, precision: IntColumn) -> FloatColumn:
        """Dense peak of linear layers by precision column."""
        return self._peak(LINEAR_PEAK, precision)

    def wide_peak(self, precision: IntColumn) -> FloatColumn:
        """Dense peak of everything that low-precision training leaves in 16 bit."""
        return self._peak(WIDE_PEAK, precision)

    def linear_rate(self, precision: IntColumn) -> FloatColumn:
        """FLOP/s that large linear layers reach."""
        return self._linear_rates[precision]

    def wide_rate(self, precision: IntColumn) -> FloatColumn:
        """FLOP/s that large products in 16 bit (or fp32) reach."""
        return self._wide_rates[precision]

    def half_rate(self) -> float:
        """FLOP/s that large products of bf16 reach, or of fp16 where there is none."""
        return self._rate("bf16" if "bf16" in self.gpu.peak_flops_per_s else "fp16")

    def memory_seconds(self, byte_count: FloatColumn) -> FloatColumn:
        """Streaming kernels: bytes over the bandwidth that they reach."""
        return byte_count / (self.gpu.memory_bytes_per_s * self.kernels.memory_efficiency)

    @cached_property
    def _linear_rates(self) -> FloatColumn:
        return self._rates(LINEAR_PEAK)

    @cached_property
    def _wide_rates(self) -> FloatColumn:
        return self._rates(WIDE_PEAK)

    def _rates(self, names: dict[str, str]) -> FloatColumn:
        return np.array([self._rate(names[choice]) for choice in PRECISIONS])

    def _rate(self, name: str) -> float:
        """Share of a peak that products reach, and FLOP a joule at the power limit. CUDA cores, which fp32 uses, stay
        below it; what products in fp4 take is not known, since one run speaks about them."""
        own = {
            "fp8": (self.generation.gemm_fp8, self.generation.fp8_flops_per_joule),
            "fp4": (self.generation.gemm_fp8, np.inf),
            "fp32": (self.generation.sgemm, np.inf),
        }
        share, per_joule = own.get(name, (self.generation.gemm, self.generation.gemm_flops_per_joule))
        peak = self.gpu.peak_flops_per_s.get(name, np.nan)
        return float(np.minimum(peak * share, self.gpu.tdp_watts * per_joule))

    def _peak(self, names: dict[str, str], precision: IntColumn) -> FloatColumn:
        # NaN where the GPU has no such peak: rules refuse those strategies before they come here.
        peaks = np.array([self.gpu.peak_flops_per_s.get(names[choice], np.nan) for choice in PRECISIONS])
        column: FloatColumn = peaks[precision]
        return column


def device_of(gpu: Gpu, coefficients: Coefficients) -> Device:
    """The GPU with the coefficients of its product, chip or generation."""
    return Device(gpu, coefficients.kernels, coefficients.generation(gpu.generation, gpu.name, gpu.chip))
