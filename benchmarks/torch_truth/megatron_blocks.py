"""Layers of Megatron-Core (its local modules, no Transformer Engine) on the meta device, in one process.

Activations with biases (`bias_gelu`, `bias_swiglu`) are Megatron's own autograd functions. What needs a GPU has
stand-ins that save the same: the scaled masked softmax (its result: megatron/core/fusions/fused_softmax.py), and of
Transformer Engine's PyTorch modules rotary embeddings (their table: pytorch/attention/rope.py), norms (a contiguous
input and statistics: pytorch/ops/basic/rmsnorm.py) and flash attention behind its copies of q, k and v
(pytorch/attention/dot_product_attention/backends.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer import attention as attention_module
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import build_module
from torch import Tensor, nn

from benchmarks.torch_truth.cuda_kernels import CudaKernels, flash
from benchmarks.torch_truth.recorder import Left, by_one_layer, left_by

Config = Mapping[str, Any]


@dataclass(frozen=True)
class MegatronCase:
    """A config of transformers as a layer of Megatron-Core, and how it is trained."""

    model: str
    """Key of `cases.CONFIGS`."""
    config: Config
    attention: str = "flash"
    checkpointing: str = "none"
    """`selective`: core attention is recomputed."""
    weights: str = "bf16"
    dropout: float = 0.0
    batch: int = 2
    sequence_length: int = 1024


class _Buffers:
    """Megatron's global memory buffer, which lives on a GPU: one tensor for all layers."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[Any, ...], Tensor] = {}

    def get_tensor(self, shape: Any, dtype: torch.dtype, name: str) -> Tensor:
        return self.tensors.setdefault((tuple(shape), dtype, name), torch.empty(shape, dtype=dtype, device="meta"))


BUFFERS = _Buffers()


class _Seeds:
    """Megatron's random states, which live on a GPU."""

    def fork(self, *_: Any) -> Any:
        return nullcontext()

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, _: Any) -> None:
        return None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, scores: Tensor) -> Tensor:
        probabilities = torch.empty_like(scores)
        context.save_for_backward(probabilities)
        return probabilities


class _Norm(nn.RMSNorm):
    def __init__(self, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


class _Flash(nn.Module):
    def __init__(self, config: TransformerConfig, *_: Any, **__: Any) -> None:
        super().__init__()
        self.dropout = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        tokens, batch = query.shape[:2]
        copies = (part.transpose(0, 1).contiguous().transpose(1, 2) for part in (query, key, value))
        output = flash(*copies, self.dropout, True)
        return output.permute(2, 0, 1, 3).reshape(tokens, batch, -1)


def set_up() -> None:
    """One process, one rank of everything; functions that Megatron compiles run as they are."""
    torch.compiler.set_stance("force_eager")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    parallel_state.get_global_memory_buffer = lambda: BUFFERS
    tensor_parallel.get_cuda_rng_tracker = _Seeds
    tensor_parallel.random.get_cuda_rng_tracker = _Seeds
    FusedScaleMaskSoftmax.forward = lambda _, scores, *__, **___: _Softmax.apply(scores)
    attention_module.apply_rotary_pos_emb = lambda x, table, *_, **__: x * table
    tensor_parallel.random._get_cuda_rng_state = lambda *_, **__: None
    tensor_parallel.random._set_cuda_rng_state = lambda *_, **__: None


def record_megatron(case: MegatronCase) -> Left:
    """Bytes of one layer among others."""
    fewer, more = (_left(case, layers) for layers in (2, 3))
    return by_one_layer(fewer, more)


def _configured(case: MegatronCase, layers: int) -> TransformerConfig:
    config, gpt = case.config, case.config["model_type"] == "gpt2"
    hidden = config["n_embd"] if gpt else config["hidden_size"]
    heads = config["n_head"] if gpt else config["num_attention_heads"]
    selective = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return TransformerConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=config.get("num_key_value_heads", heads),
        kv_channels=config.get("head_dim", hidden // heads),
        ffn_hidden_size=4 * hidden if gpt else config["intermediate_size"],
        hidden_dropout=case.dropout,
        attention_dropout=case.dropout,
        bf16=True,
        params_dtype=torch.bfloat16,
        normalization="LayerNorm" if gpt else "RMSNorm",
        gated_linear_unit=not gpt,
        activation_func=nn.functional.gelu if gpt else nn.functional.silu,
        add_bias_linear=gpt,
        bias_activation_fusion=True,
        masked_softmax_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        **(selective if case.checkpointing == "selective" else {}),
    )


def _left(case: MegatronCase, layers: int) -> Left:
    config = _configured(case, layers)
    spec = get_gpt_layer_local_spec(
        qk_layernorm=case.config["model_type"].startswith("qwen3"), normalization=config.normalization
    )
    submodules = spec.submodules.self_attention.submodules
    if case.attention == "flash":
        submodules.core_attention = _Flash
    if case.config["model_type"].startswith("qwen3"):
        submodules.q_layernorm = submodules.k_layernorm = _Norm
    tokens = case.sequence_length
    BUFFERS.tensors.clear()
    with torch.device("meta"):
        blocks = [build_module(spec, config=config, layer_number=1 + i) for i in range(layers)]
        model = nn.ModuleList(blocks).to(torch.bfloat16).train()
        inputs = torch.empty(tokens, case.batch, config.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool)
        rotary = (
            torch.empty(tokens, 1, 1, config.kv_channels, dtype=torch.bfloat16) if config.gated_linear_unit else None
        )
    for block in blocks:
        block.self_attention.attn_mask_type = AttnMaskType.causal

    def run() -> Tensor:
        x = inputs * 1.0
        for block in blocks:
            x, _ = block(x, attention_mask=mask, rotary_pos_emb=rotary)
        return x

    with CudaKernels():
        return left_by(model, run)


def megatron_cases(configs: Mapping[str, Config]) -> Iterator[MegatronCase]:
    """A GPT of arXiv 2205.05198 and decoders with gates, groups and q, k norms."""
    for model in ("gpt2", "llama", "qwen3"):
        for attention in ("flash", "eager"):
            for dropout in (0.0, 0.1):
                for batch in (1, 2):
                    yield MegatronCase(model, configs[model], attention, dropout=dropout, batch=batch)
        # Not with flash: what Transformer Engine's kernels hold of a view of q, k, v decides, and they do not run here.
        yield MegatronCase(model, configs[model], "eager", "selective", dropout=0.1)
