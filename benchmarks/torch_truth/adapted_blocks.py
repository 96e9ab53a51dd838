"""Layers of transformers with PEFT's LoRA adapters beside their matrices, everything else frozen.

pip install --no-deps peft==0.21.2 accelerate==1.15.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import CONFIG_MAPPING, AutoModel

from benchmarks.torch_truth.cuda_kernels import CudaKernels
from benchmarks.torch_truth.recorder import Left, by_one_layer, left_by
from benchmarks.torch_truth.transformers_blocks import KERNEL

RANK = 16
TARGETS = {
    "all-linear": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "attention-qv": ["q_proj", "v_proj"],
}


@dataclass(frozen=True)
class AdaptedCase:
    """A config of transformers, and which of its matrices are adapted."""

    model: str
    """Key of `cases.CONFIGS`."""
    config: Mapping[str, Any]
    target: str
    weights: str = "bf16"
    """`bf16`: adapters in 16 bit like what they adapt. `autocast`: adapters in fp32, as PEFT makes them, beside frozen
    weights in 16 bit, under autocast."""
    attention: str = "flash"
    checkpointing: str = "none"
    dropout: float = 0.0
    batch: int = 2
    sequence_length: int = 1024


def record_adapted(case: AdaptedCase) -> Left:
    """Bytes of one layer among others."""
    fewer, more = (_left(case, layers) for layers in (2, 3))
    return by_one_layer(fewer, more)


def _left(case: AdaptedCase, layers: int) -> Left:
    fields = dict(case.config) | {"num_hidden_layers": layers}
    config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    kernel = KERNEL if case.attention == "flash" else case.attention
    with torch.device("meta"):
        model = AutoModel.from_config(config, attn_implementation=kernel, dtype=torch.bfloat16).to("meta")
        model.requires_grad_(False)
        adapters = LoraConfig(r=RANK, target_modules=TARGETS[case.target])
        inject_adapter_in_model(adapters, model, low_cpu_mem_usage=True)
        shape = (case.batch, case.sequence_length, config.hidden_size)
        inputs = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(torch.float32 if case.weights == "autocast" else torch.bfloat16)
    kernels = CudaKernels(torch.bfloat16 if case.weights == "autocast" else None)
    with torch.device("meta"), kernels:
        return left_by(model.train(), lambda: model(inputs_embeds=inputs, use_cache=False), kernels.weight_copies)


def adapted_cases(configs: Mapping[str, Any]) -> Iterator[AdaptedCase]:
    """Each target, in 16 bit and under autocast."""
    for model in ("llama", "gemma"):
        for target in TARGETS:
            for weights in ("bf16", "autocast"):
                yield AdaptedCase(model, configs[model], target, weights)
        yield AdaptedCase(model, configs[model], "all-linear", attention="eager")
