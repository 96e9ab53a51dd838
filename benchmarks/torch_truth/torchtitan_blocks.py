"""Blocks as torchtitan composes them: norms fused, activations plain, keys and values of their own heads.

Written anew after torchtitan/models (llama3, deepseek_v3, common/moe) and torchtitan/distributed/activation_checkpoint
as of torchtitan 0.2, operator for operator where autograd saves something; a GPT block in the same manner beside them.
Compiled blocks are traced and cut into forward and backward as torch.compile does, without running them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.torch_truth.cuda_kernels import CudaKernels, attention
from benchmarks.torch_truth.partition import handed_over
from benchmarks.torch_truth.recorder import Left, by_one_layer, left_by

Config = Mapping[str, Any]
aten = torch.ops.aten
SAVED_OPERATORS = (
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
)


@dataclass(frozen=True)
class TitanCase:
    """A config of transformers whose block is put together torchtitan's way, and how it is trained."""

    model: str
    """Key of `cases.CONFIGS`."""
    config: Config
    checkpointing: str = "none"
    weights: str = "bf16"
    dropout: float = 0.0
    batch: int = 2
    sequence_length: int = 1024
    attention: str = "flash"
    compile: bool = False
    """Block by block, as torchtitan compiles."""


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary embedding by complex numbers, in fp32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(3).type_as(x)


class GroupedQueryAttention(nn.Module):
    """With q and k norms where the config is Qwen 3's; without rotation in a GPT."""

    def __init__(self, config: Config, dropout: float) -> None:
        super().__init__()
        hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.groups = config.get("num_key_value_heads", self.heads)
        self.dim = config.get("head_dim", hidden // self.heads)
        self.dropout, self.rotary = dropout, config["model_type"] != "bert"
        self.wq = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.wk = nn.Linear(hidden, self.groups * self.dim, bias=False)
        self.wv = nn.Linear(hidden, self.groups * self.dim, bias=False)
        self.wo = nn.Linear(self.heads * self.dim, hidden, bias=False)
        normed = config["model_type"].startswith("qwen3")
        self.q_norm, self.k_norm = (nn.RMSNorm(self.dim) if normed else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (part.view(batch, tokens, -1, self.dim) for part in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            q, k = rotate(q, table), rotate(k, table)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        output = attention(q, k, v, dropout_p=self.dropout, is_causal=True, enable_gqa=True)
        return self.wo(output.transpose(1, 2).contiguous().view(batch, tokens, -1))


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek's."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.plain, self.rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value, self.rank = config["v_head_dim"], config["kv_lora_rank"]
        self.wq_a = nn.Linear(hidden, config["q_lora_rank"], bias=False)
        self.q_norm = nn.RMSNorm(config["q_lora_rank"])
        self.wq_b = nn.Linear(config["q_lora_rank"], self.heads * (self.plain + self.rotated), bias=False)
        self.wkv_a = nn.Linear(hidden, self.rank + self.rotated, bias=False)
        self.kv_norm = nn.RMSNorm(self.rank)
        self.wkv_b = nn.Linear(self.rank, self.heads * (self.plain + self.value), bias=False)
        self.wo = nn.Linear(self.heads * self.value, hidden, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(batch, tokens, self.heads, -1)
        q_plain, q_rotated = q.split([self.plain, self.rotated], dim=-1)
        q = torch.cat([q_plain, rotate(q_rotated, table)], dim=-1)
        latent, k_rotated = self.wkv_a(x).split([self.rank, self.rotated], dim=-1)
        k_rotated = rotate(k_rotated.unsqueeze(2), table)
        kv = self.wkv_b(self.kv_norm(latent)).view(batch, tokens, self.heads, -1)
        k_plain, v = kv.split([self.plain, self.value], dim=-1)
        k = torch.cat([k_plain, k_rotated.expand(-1, -1, self.heads, -1)], dim=-1)
        output = attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=True)
        return self.wo(output.transpose(1, 2).contiguous().view(batch, tokens, -1))


class GatedPerceptron(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class PlainPerceptron(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.gelu(self.w1(x)))


class Mixture(nn.Module):
    """Token-choice routing with grouped products; scores applied to the experts' outputs, in fp32."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.experts = next(
            config[key] for key in ("n_routed_experts", "num_local_experts", "num_experts") if key in config
        )
        self.chosen = config["num_experts_per_tok"]
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        self.gate = nn.Linear(hidden, self.experts, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.empty(self.experts, width, hidden)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(self.experts, hidden, width))
        shared = config.get("n_shared_experts", 0) * width
        self.shared = GatedPerceptron(hidden, shared) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, shape[-1])
        scores = torch.sigmoid(self.gate(x).to(torch.float32))
        _, chosen = torch.topk(scores.detach(), k=self.chosen, dim=-1, sorted=False)
        weights = scores.gather(dim=1, index=chosen)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        counts = torch.empty(self.experts, dtype=torch.int32, device=x.device)
        offsets = torch.cumsum(counts, dim=0, dtype=torch.int32)
        order = torch.argsort(chosen.view(-1), stable=True)
        routed = x[order // self.chosen]
        first, third, second = (w.transpose(-2, -1) for w in (self.w1, self.w3, self.w2))
        inner = functional.silu(torch._grouped_mm(routed, first, offs=offsets)) * torch._grouped_mm(
            routed, third, offs=offsets
        )
        output = torch._grouped_mm(inner, second, offs=offsets)
        shared = self.shared(x) if self.shared is not None else None
        unsorted = torch.zeros_like(output)
        unsorted[order] = output
        unsorted = unsorted.reshape(-1, self.chosen, shape[-1])
        mixed = torch.bmm(weights.reshape(-1, 1, self.chosen), unsorted.float()).to(x.dtype).squeeze(1)
        return (mixed if shared is None else shared + mixed).reshape(shape)


class Block(nn.Module):
    def __init__(self, config: Config, dropout: float) -> None:
        super().__init__()
        hidden, gpt = config["hidden_size"], config["model_type"] == "bert"
        norm = partial(nn.LayerNorm, hidden) if gpt else partial(nn.RMSNorm, hidden)
        self.attention_norm, self.ffn_norm = norm(), norm()
        latent = "kv_lora_rank" in config
        self.attention = MultiHeadLatentAttention(config) if latent else GroupedQueryAttention(config, dropout)
        if "num_experts_per_tok" in config:
            self.feed_forward: nn.Module = Mixture(config)
        else:
            perceptron = PlainPerceptron if gpt else GatedPerceptron
            self.feed_forward = perceptron(hidden, config["intermediate_size"])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), table))
        return x + self.dropout(self.feed_forward(self.ffn_norm(x)))


def _policy(router: tuple[int, ...]) -> Callable[..., CheckpointPolicy]:
    """Every second product of two matrices, attention; never the router's."""
    seen: dict[bool, int] = defaultdict(int)

    def decide(context: Any, operator: Any, *args: Any, **_: Any) -> CheckpointPolicy:
        if operator == aten.mm.default:
            if tuple(args[1].shape) == router:
                return CheckpointPolicy.PREFER_RECOMPUTE
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        saved = operator in SAVED_OPERATORS
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def record_titan(case: TitanCase) -> Left:
    """Bytes of one block among others."""
    if case.compile:
        return _compiled(case)
    fewer, more = (_left(case, layers) for layers in (2, 3))
    return by_one_layer(fewer, more)


def _built(case: TitanCase, layers: int) -> tuple[nn.ModuleList, Tensor, Tensor]:
    """Blocks, what they read, and the table of rotations."""
    config = case.config
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[case.weights]
    whole = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    width = config.get("qk_rope_head_dim", whole)
    with torch.device("meta"):
        blocks = nn.ModuleList(Block(config, case.dropout) for _ in range(layers)).to(dtype).train()
        table = torch.empty(case.sequence_length, 1, width // 2, dtype=torch.complex64)
        inputs = torch.empty(case.batch, case.sequence_length, config["hidden_size"], dtype=dtype, requires_grad=True)
    return blocks, inputs, table


def _checkpointed(case: TitanCase, block: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    if case.checkpointing == "none":
        return block
    router = (case.config["hidden_size"], getattr(block.feed_forward, "experts", 0))
    if case.checkpointing == "full":
        return lambda x, table: checkpoint(block, x, table, use_reentrant=False)

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(_policy(router))

    return lambda x, table: checkpoint(block, x, table, use_reentrant=False, context_fn=contexts)


def _left(case: TitanCase, layers: int) -> Left:
    blocks, inputs, table = _built(case, layers)

    def run() -> Tensor:
        x = inputs * 1.0
        for block in blocks:
            x = _checkpointed(case, block)(x, table)
        return x

    with torch.device("meta"), CudaKernels():
        return left_by(blocks, run)


def _compiled(case: TitanCase) -> Left:
    blocks, inputs, table = _built(case, 1)
    size = handed_over(_checkpointed(case, blocks[0]), inputs, table)
    return Left(size, size)


def titan_cases(configs: Mapping[str, Config]) -> Iterator[TitanCase]:
    """Dense, sparse and latent blocks under each kind of checkpointing, and a GPT's with dropout."""
    for model in ("llama", "qwen3", "bert", "mixtral", "qwen3_moe", "deepseek_v3"):
        config = configs[model]
        for checkpointing in ("none", "selective", "full"):
            yield TitanCase(model, config, checkpointing)
        yield TitanCase(model, config, batch=1)
        for checkpointing in ("none", "selective"):
            yield TitanCase(model, config, checkpointing, compile=True)
        if model == "bert":
            yield TitanCase(model, config, dropout=0.1)
