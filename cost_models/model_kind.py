"""What kind of training a problem is, as far as measured runs tell kinds apart."""

from __future__ import annotations

from typing import Final

from cost_models.architecture import ModelArchitecture
from cost_models.workload import Workload

KINDS: Final = ("dense", "moe", "encoder", "encoder-decoder", "vision", "lora", "qlora")
"""Of which each has operators, tensors or traffic of its own."""


def model_kind(model: ModelArchitecture, workload: Workload) -> str:
    """One of KINDS; adapters before anything else, since they decide what has gradients and states."""
    if workload.fine_tuning is not None:
        return workload.fine_tuning.method
    if model.is_classifier:
        return "vision"
    if model.is_encoder_decoder:
        return "encoder-decoder"
    if any(block.encoder for block in model.blocks):
        return "encoder"
    return "moe" if any(block.experts for block in model.blocks) else "dense"
