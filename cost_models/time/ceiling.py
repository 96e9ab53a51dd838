"""The most that a step may make of the GPUs: what no public run has reached is taken for optimism of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from cost_models.results import step_seconds_of
from cost_models.strategy import FloatColumn

HIGHEST_UTILISATION: Final = 0.65
"""Model FLOP over the dense peak. The best of the public measured runs that the coefficients were fitted on reached
0.641 (MPT on A100, llm-foundry's tables)."""
HIGHEST_HARDWARE_UTILISATION: Final = 0.80
"""The same with recomputed FLOP, but without those of masked keys, which flash kernels skip: with them Llama-7B at 256k
tokens reached 0.87 (A100, arXiv 2310.03294 table 1). The best of the runs above reached 0.78."""


def below_ceiling(
    parts: Mapping[str, FloatColumn], fastest_seconds: FloatColumn
) -> tuple[dict[str, FloatColumn], FloatColumn]:
    """The parts, and their sum held above `fastest_seconds`: what is missing is spread over forward and backward."""
    step = step_seconds_of(parts)
    missing = np.maximum(fastest_seconds - step, 0.0)
    if not missing.any():
        return dict(parts), step
    stretch = 1.0 + missing / (parts["forward"] + parts["backward"])
    held = {name: parts[name] * stretch for name in ("forward", "backward")}
    return {**parts, **held}, step + missing


def fastest_seconds(
    model_flops: FloatColumn, executed_flops: FloatColumn, peak_flops_per_s: FloatColumn, gpus: int
) -> FloatColumn:
    """A step at the highest utilisation."""
    flops = np.maximum(model_flops / HIGHEST_UTILISATION, executed_flops / HIGHEST_HARDWARE_UTILISATION)
    fastest: FloatColumn = flops / (peak_flops_per_s * gpus)
    return fastest
