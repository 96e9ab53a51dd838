"""What is trained: sequence length, global batch, precision, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.cluster import Gpu

Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "fp32"]
Optimizer = Literal["adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "muon"]
AttentionKernel = Literal["flash", "eager"]


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Low-rank adapters on a frozen model."""

    method: Literal["lora", "qlora"]
    rank: int = 16
    target: Literal["attention", "attention-qv", "all-linear"] = "all-linear"
    modules_to_save: tuple[Literal["embedding", "head"], ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """One optimizer step: `global_batch_size` sequences of `sequence_length` tokens."""

    sequence_length: int
    global_batch_size: int
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    attention: AttentionKernel = "flash"
    fused_loss: bool = False
    dropout: float = 0.0
    expert_imbalance: float = 1.0
    """Load of the hottest expert over the mean."""
    training_tokens: float | None = None
    fine_tuning: FineTuning | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.sequence_length * self.global_batch_size


def usual_precision(gpu: Gpu) -> Precision:
    """What is trained in where nothing is stated."""
    return "bf16" if gpu.supports("bf16") else "fp16"


def usual_attention(gpu: Gpu) -> AttentionKernel:
    """How attention is computed where nothing is stated."""
    return "flash" if gpu.flash_attention else "eager"
