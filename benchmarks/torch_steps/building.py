"""The decoder that a step asks for."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.torch_steps.adapters import adapt
from benchmarks.torch_steps.fused_loss import FusedHead
from benchmarks.torch_steps.models import Decoder
from benchmarks.torch_steps.step import Step
from benchmarks.torch_truth.torchtitan_blocks import Mixture


def built(step: Step, adapters: torch.dtype) -> Decoder:
    """With experts, adapters in the given dtype, or the loss fused to the head."""
    dims = step.dims
    model = Decoder(dims, step.sequence_length)
    if step.experts:
        config = {
            "hidden_size": dims.hidden_size,
            "num_experts": step.experts["experts"],
            "num_experts_per_tok": step.experts["experts_per_token"],
            "moe_intermediate_size": step.experts["expert_ffn_hidden_size"],
            "intermediate_size": dims.ffn_hidden_size,
        }
        for layer in model.layers:
            layer.feed_forward = Mixture(config)
    if tuning := step.workload.get("fine_tuning"):
        adapt(model, tuning["rank"], adapters)
    if step.workload.get("fused_loss"):
        head: nn.Linear = model.output
        model.output = FusedHead(head.in_features, head.out_features, bias=False)
    return model
