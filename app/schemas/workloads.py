"""Workload: what one optimizer step trains on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.schemas.base import RequestModel
from cost_models.workload import AttentionKernel, Optimizer, Precision


class FineTuning(RequestModel):
    """Low-rank adapters on a frozen model."""

    method: Literal["lora", "qlora"] = Field(description="qlora keeps the frozen model in NF4.")
    rank: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Left out: 16.")
    target: Literal["attention", "attention-qv", "all-linear"] | None = Field(
        None, description="Which linear layers of the blocks get adapters; left out: all-linear."
    )
    modules_to_save: Annotated[list[Literal["embedding", "head"]], Field(max_length=2)] | None = Field(
        None, description="Trained in full; left out: none."
    )


class Workload(RequestModel):
    """One optimizer step. Defaults that were used are listed in `assumptions`."""

    sequence_length: Annotated[int, Field(ge=1, le=10**8)] | None = Field(
        None, description="Tokens of a sequence. Required, except for a ViT."
    )
    global_batch_size: Annotated[int, Field(ge=1, le=10**7)] = Field(
        description="Sequences of one optimizer step, kept exactly."
    )
    precision: Precision | None = Field(None, description="Left out: bf16, or fp16 where the GPU has no bf16.")
    optimizer: Optimizer | None = Field(None, description="Left out: adamw.")
    attention: AttentionKernel | None = Field(
        None, description="Left out: flash, or eager where the GPU has no such kernel."
    )
    fused_loss: bool | None = Field(None, description="Chunked or fused cross-entropy; left out: false.")
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="Probability; left out: 0.")
    expert_imbalance: Annotated[float, Field(ge=1, le=1000)] | None = Field(
        None, description="Load of the hottest expert over the mean; left out: 1."
    )
    training_tokens: Annotated[float, Field(ge=1, le=1e18)] | None = Field(
        None, description="Of the whole training; needed for days, GPU hours, cost and energy."
    )
    fine_tuning: FineTuning | None = Field(None, description="Left out: all parameters are trained.")
