"""transformers' Llama with the flash kernel of `kernels`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.torch_steps import kernels
from benchmarks.torch_steps.models import Dims


def _flash(_: nn.Module, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    # Autocast hands 16-bit tensors to attention.
    q, k = q.to(v.dtype), k.to(v.dtype)
    return kernels.flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))[0], None


ALL_ATTENTION_FUNCTIONS.register("paraplan_kernel", _flash)
ALL_MASK_ATTENTION_FUNCTIONS.register("paraplan_kernel", lambda *_, **__: None)


def language_model(dims: Dims) -> LlamaForCausalLM:
    """An untied causal language model, in training."""
    config = LlamaConfig(
        num_hidden_layers=dims.layers,
        hidden_size=dims.hidden_size,
        num_attention_heads=dims.attention_heads,
        num_key_value_heads=dims.key_value_heads,
        intermediate_size=dims.ffn_hidden_size,
        vocab_size=dims.vocab_size,
        attn_implementation="paraplan_kernel",
    )
    return LlamaForCausalLM(config).train()
