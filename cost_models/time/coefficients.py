"""The few physical coefficients of the time model, read from `coefficients.toml`, which says where each comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from cost_models.strategy import FRAMEWORKS, FloatColumn


@dataclass(frozen=True, slots=True)
class KernelCoefficients:
    """How kernels of any GPU behave."""

    operator_seconds: float
    kernel_gap_seconds: float
    memory_efficiency: float
    gemm_depth: float
    head_dim_depth: float
    attention_depth: float
    flash_backward: float
    biased_flash: float


@dataclass(frozen=True, slots=True)
class LinkCoefficients:
    """How collectives behave on any link."""

    efa_hop_seconds: float
    half_bytes: float
    efa_step_seconds: float
    intra_efficiency: float
    inter_efficiency: float
    host_efficiency: float


@dataclass(frozen=True, slots=True)
class GenerationCoefficients:
    """Shares of the dense peak that one GPU generation reaches, and what its power limit allows."""

    gemm: float
    gemm_fp8: float
    sgemm: float
    gemm_flops_per_joule: float
    fp8_flops_per_joule: float
    flash_forward: float
    plain_flash: float


@dataclass(frozen=True, slots=True)
class FrameworkCoefficients:
    """What traffic hides behind under a framework, and what it costs the CPU."""

    data_parallel_overlap: float
    sharded_overlap: float
    gather_bandwidth: float
    hidden_tensor_traffic: float
    hidden_pipeline_traffic: float
    operator_overhead: float
    barrier_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Coefficients:
    """All coefficients of the time model."""

    fitted_on: str
    kernels: KernelCoefficients
    links: LinkCoefficients
    generations: Mapping[str, GenerationCoefficients]
    frameworks: Mapping[str, FrameworkCoefficients]

    def by_framework(self, name: str) -> FloatColumn:
        """One coefficient of every framework, in the order of the framework column."""
        return np.array([getattr(self.frameworks[framework], name) for framework in FRAMEWORKS])

    def generation(self, name: str | None, *special: str | None) -> GenerationCoefficients:
        """Of a GPU generation, or of the first product or chip that differs from it; None: one without an entry."""
        own = (self.generations[part] for part in special if part is not None and part in self.generations)
        return next(own, self.generations[name or "unknown"])


def coefficients_from(document: Mapping[str, Any]) -> Coefficients:
    """Coefficients from the parsed TOML."""
    return Coefficients(
        fitted_on=document["fitted_on"],
        kernels=KernelCoefficients(**document["kernels"]),
        links=LinkCoefficients(**document["links"]),
        generations={name: GenerationCoefficients(**values) for name, values in document["generation"].items()},
        frameworks={name: FrameworkCoefficients(**values) for name, values in document["framework"].items()},
    )


@cache
def default_coefficients() -> Coefficients:
    """Those of the package."""
    return coefficients_from(tomllib.loads(resources.files(__package__).joinpath("coefficients.toml").read_text()))
