"""How transformers writes the blocks of a model out, where that decides what autograd keeps for their backward.

Facts of the modules `transformers/models/*/modeling_*.py` (transformers 5.24), read there and checked against PyTorch
by `benchmarks/torch_truth`; they matter for `kernels: eager` only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

PlainNorm = Literal["kernel", "fp32_kernel", "rounded", "mixed", "fp32", "centred"]
"""`kernel`: torch's layer_norm reads the residual stream. `fp32_kernel`: the same on an fp32 copy (OLMo). `rounded`:
RMSNorm by hand, its values rounded before they meet the weight (LlamaRMSNorm). `mixed`: the
same, dividing what was read instead of its fp32 copy (T5LayerNorm). `fp32`: RMSNorm by hand, all of it in
fp32 (Gemma, OLMo 2, gpt-oss). `centred`: LayerNorm by hand in fp32 (Cohere)."""


@dataclass(frozen=True, slots=True)
class PlainCode:
    """What one class's block does."""

    norm: PlainNorm
    fp32_scores: bool = True
    """The softmax is asked for in fp32, and its result rounded."""
    fp32_products: bool = False
    """Queries and keys are multiplied in fp32 (GPT-J, GPT-Neo)."""
    joined_heads: bool = False
    """Queries are put together from a rotated and another part (torch.cat), which leaves heads outside of tokens: the
    flash kernel's output lies like its queries, and the projection reads a copy."""
    residual_dropout: Literal["none", "perceptron", "all"] = "none"
    """Where there is dropout besides that of attention's probabilities: after the perceptron, after attention too."""
    inner_dropout: bool = False
    """Dropout between the perceptron's matrices too."""
    widens_last_input: bool = False
    """The input of the perceptron's last matrix is cast to the dtype of its weights before autocast narrows it."""
    fp32_router: bool = False
    """The router's matrix is multiplied in fp32, on an fp32 copy of its input."""
    clamped_gate: bool = False
    """Experts clamp both branches and keep what each step of the gate reads (gpt-oss)."""
    computes_all_experts: bool = False
    """Every expert sees every token (Llama 4)."""


_LAYER_NORM: Final = PlainCode("kernel")
_RMS_NORM: Final = PlainCode("rounded")
_FP32_RMS_NORM: Final = PlainCode("fp32")
_GPT: Final = replace(_LAYER_NORM, residual_dropout="all")
_GPT_2: Final = replace(_GPT, fp32_scores=False)
_PARTLY_ROTATED_GPT: Final = replace(_GPT, joined_heads=True)
_LATENT: Final = replace(_RMS_NORM, joined_heads=True, fp32_router=True)

_CODES: Final = {
    "bert": _GPT_2,
    "roberta": _GPT_2,
    "vit": _GPT,
    "gpt2": _GPT_2,
    "gpt_bigcode": _GPT,
    "bloom": _GPT,
    "falcon": _GPT_2,
    "gpt_neo": replace(_GPT, fp32_products=True),
    "gpt_neox": _PARTLY_ROTATED_GPT,
    "gptj": replace(_GPT, fp32_products=True),
    "mpt": _GPT,
    "opt": _GPT,
    "t5": PlainCode("mixed", fp32_scores=False, residual_dropout="all", inner_dropout=True, widens_last_input=True),
    "phimoe": _LAYER_NORM,
    "phi": _PARTLY_ROTATED_GPT,
    "phi3": replace(_RMS_NORM, joined_heads=True, residual_dropout="all"),
    "starcoder2": _GPT,
    "stablelm": replace(_PARTLY_ROTATED_GPT, residual_dropout="perceptron"),
    "nemotron": replace(_LAYER_NORM, joined_heads=True),
    "glm": replace(_RMS_NORM, joined_heads=True),
    "glm4": replace(_RMS_NORM, joined_heads=True),
    "glm4_moe": replace(_RMS_NORM, joined_heads=True, fp32_router=True),
    "gemma": _FP32_RMS_NORM,
    "gemma2": _FP32_RMS_NORM,
    "gemma3_text": _FP32_RMS_NORM,
    "olmo": PlainCode("fp32_kernel"),
    "olmo2": _FP32_RMS_NORM,
    "cohere": PlainCode("centred"),
    "cohere2": PlainCode("centred"),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "gpt_oss": replace(_FP32_RMS_NORM, fp32_scores=False, joined_heads=True, clamped_gate=True),
    "llama4_text": replace(_RMS_NORM, fp32_scores=False, computes_all_experts=True),
}
"""By `model_type`; the others are written like Llama, or like GPT where they have LayerNorm."""


def plain_code(model_type: str, norm: str) -> PlainCode:
    """Of one model type, whose norm is `layernorm` or `rmsnorm`."""
    return _CODES.get(model_type, _GPT if norm == "layernorm" else _RMS_NORM)
