"""Layers of transformers under torch.compile: what the forward graph hands to the backward graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from benchmarks.torch_truth.partition import handed_over
from benchmarks.torch_truth.recorder import Left
from benchmarks.torch_truth.transformers_blocks import KERNEL, Case, set_dropout

LAYERS: Mapping[str, type[nn.Module]] = {
    "llama": LlamaDecoderLayer,
    "qwen3": Qwen3DecoderLayer,
    "gpt2": GPT2Block,
}


def record_compiled(case: Case) -> Left:
    """Bytes of one layer, compiled by itself."""
    fields = dict(case.config)
    config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    set_dropout(config, case.dropout)
    config._attn_implementation = KERNEL if case.attention == "flash" else case.attention
    with torch.device("meta"):
        layer = LAYERS[case.model](config, 0).to(torch.bfloat16).train()
        shape = (case.batch, case.sequence_length, config.hidden_size)
        inputs = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)
        rotary = torch.empty(1, case.sequence_length, config.hidden_size // config.num_attention_heads)
    table = rotary.to(torch.bfloat16)
    given = {} if case.model == "gpt2" else {"position_embeddings": (table, table)}
    size = handed_over(lambda x: layer(x, **given), inputs)
    return Left(size, size)


def compiled_cases(configs: Mapping[str, Any]) -> Iterator[Case]:
    """Each class with either attention."""
    for model in LAYERS:
        for attention in ("flash", "eager"):
            yield Case(model, configs[model], attention, compile=True)
