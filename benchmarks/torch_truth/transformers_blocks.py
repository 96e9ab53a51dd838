"""Blocks of `transformers` as they are: what one more layer of a whole backbone leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers.masking_utils
from transformers import CONFIG_MAPPING, AttentionInterface, AttentionMaskInterface, AutoModel

from benchmarks.torch_truth.cuda_kernels import CudaKernels, flash
from benchmarks.torch_truth.recorder import Left, by_one_layer, left_by

KERNEL = "recorded"
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True)
class Case:
    """A config of transformers, and how it is trained."""

    model: str
    """Key of `cases.CONFIGS`."""
    config: Mapping[str, Any]
    attention: str = "flash"
    """`flash`, or `eager`: transformers' own operators."""
    weights: str = "bf16"
    """Dtype of the weights: `bf16` and `fp16` as DeepSpeed keeps them, `fp32` without autocast, `autocast`: fp32
    weights under autocast to bf16."""
    checkpointing: str = "none"
    dropout: float = 0.0
    batch: int = 2
    sequence_length: int = 1024
    compile: bool = False


def _flash_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """flash_attention_2's convention: keys and values of their own heads, values padded to the width of the keys."""
    width = value.shape[-1]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if query.dtype == torch.float32:
        # under autocast: what q and k norms or rotary embeddings raised goes back to the dtype of the kernel
        query, key, value = (tensor.to(torch.bfloat16) for tensor in (query, key, value))
    if query.shape[-1] != width:
        value = torch.nn.functional.pad(value, [0, query.shape[-1] - width])
    output = flash(query, key, value, dropout, causal)[..., :width]
    return output.transpose(1, 2), None


AttentionInterface.register(KERNEL, _flash_attention)
AttentionMaskInterface.register(KERNEL, lambda *_, **__: None)
# It reads values of position ids, which meta tensors have not: no sequences are packed.
transformers.masking_utils.find_packed_sequence_indices = lambda *_: None
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "autocast": torch.float32}


def record(case: Case) -> Left:
    """Bytes of the layer that the larger of two models has more."""
    key = next(key for key in LAYER_KEYS if key in case.config)
    if case.config.get("num_decoder_layers", 0) > case.config[key]:
        key = "num_decoder_layers"
    layers = case.config[key]
    fewer, more = (_left(case, key, count) for count in (layers - 1, layers))
    return by_one_layer(fewer, more)


def _left(case: Case, key: str, layers: int) -> Left:
    fields = dict(case.config) | {key: layers}
    if "attention_types" in fields:
        fields["attention_types"] = [[["global"], layers]]
    config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    set_dropout(config, case.dropout)
    kernel = KERNEL if case.attention == "flash" else case.attention
    with torch.device("meta"):
        model = AutoModel.from_config(config, attn_implementation=kernel, dtype=DTYPES[case.weights])
    model.to("meta").train()
    if case.checkpointing == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    inputs = _inputs(case, config)
    kernels = CudaKernels(torch.bfloat16 if case.weights == "autocast" else None)
    with torch.device("meta"), kernels:
        return left_by(model, lambda: model(**inputs), kernels.weight_copies)


def set_dropout(config: Any, share: float) -> None:
    """All of a config's shares, whatever it calls them."""
    for key, value in vars(config).items():
        if ("dropout" in key or "pdrop" in key) and isinstance(value, float | int) and not isinstance(value, bool):
            vars(config)[key] = share
        elif key == "attn_config":
            set_dropout(value, share)


def _inputs(case: Case, config: Any) -> dict[str, Any]:
    if config.model_type == "vit":
        size = config.image_size
        dtype = DTYPES[case.weights]
        return {"pixel_values": torch.empty(case.batch, config.num_channels, size, size, device="meta", dtype=dtype)}
    tokens = torch.zeros(case.batch, case.sequence_length, dtype=torch.int64, device="meta")
    inputs: dict[str, Any] = {"input_ids": tokens}
    if config.model_type == "t5":
        inputs["decoder_input_ids"] = tokens
    if not getattr(config, "is_encoder_decoder", False) and hasattr(config, "use_cache"):
        inputs["use_cache"] = False
    return inputs
