"""The planned model in torchtitan's words: a flavour that it ships, or a Llama of any shape.

Source: pytorch/torchtitan 0.3.0 `models/llama3/__init__.py`, `models/qwen3`, `models/deepseek_v3`, `models/gpt_oss`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from cost_models.architecture import FeedForward, ModelArchitecture
from cost_models.catalog.models import load_model
from search.launch.job import LaunchJob

FLAVOURS: Final = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}
"""Preset → module and flavour."""
FLEX: Final = "flex"
OWN_FLAVOUR: Final = "planned"
ROPE_THETA: Final = 10000
"""As Llama 1 and 2 have it; it changes neither memory nor time."""
NVFP4_BF16_TAIL: Final = 0.15
"""Share of the last layers that torchtitan's own NVFP4 configurations leave in bf16."""
CONVERTERS: Final = {
    "rowwise": ("Float8LinearConverter", 'recipe_name="rowwise", filter_fqns=["lm_head"]'),
    "mxfp8": ("MXFP8LinearConverter", 'fqns=["layers"]'),
    "nvfp4": ("NVFP4LinearConverter", "fqns=nvfp4_bf16_tail_fqns({layers}, {tail})"),
}
"""fp8_recipe, or nvfp4 → class and arguments: linear layers of the blocks."""


def model_refusals(job: LaunchJob) -> dict[str, str]:
    """torchtitan defines its models itself."""
    if flavour(job.model) is None and not is_llama(job.model):
        reason = f"torchtitan has no definition of {job.model.name} (it has Llama, Qwen3, DeepSeek-V3, gpt-oss)"
        return {"model": reason}
    return {}


def flavour(model: ModelArchitecture) -> tuple[str, str] | None:
    """Module and flavour of the shipped model that this one is, whatever it is called."""
    for preset, found in FLAVOURS.items():
        if _same(model, _preset(preset)):
            return found
    return None


def is_llama(model: ModelArchitecture) -> bool:
    """Whether torchtitan's Llama of another shape is this model: one kind of block, nothing but what Llama 3 has."""
    block = model.blocks[0]
    attention, forward = block.attention, block.feed_forward
    return (
        model.model_type == "llama"
        and len(model.blocks) == 1
        and isinstance(forward, FeedForward)
        and forward.gated
        and not model.tied_embeddings
        and attention.window is None
        and attention.head_dim * attention.heads == model.hidden_size
        and not any(linear.bias for linear in (*attention.linears, *forward.linears))
    )


def _llama_lines(job: LaunchJob) -> list[str]:
    """A flavour of its own, built as torchtitan builds those that it ships."""
    model = job.model
    attention, forward = model.blocks[0].attention, model.blocks[0].feed_forward
    assert isinstance(forward, FeedForward)
    width, words = model.hidden_size, model.vocab_size
    length = max(job.workload.sequence_length, model.max_position_embeddings or 0)
    rope = f"dim={attention.head_dim}, max_seq_len={length}, theta={ROPE_THETA}"
    return [
        "from torchtitan.models import llama3",
        "from torchtitan.models.llama3 import llama3_configs, model_registry",
        "",
        "",
        'def planned_model(attn_backend, tp_gemm_backend="default"):',
        "    return llama3.Llama3Model.Config(",
        f"        dim={width},",
        f"        vocab_size={words},",
        "        tok_embeddings=llama3.Embedding.Config(",
        f"            num_embeddings={words}, embedding_dim={width}, param_init=llama3._EMBEDDING_INIT",
        "        ),",
        f"        norm=llama3.RMSNorm.Config(normalized_shape={width}, param_init=llama3._NORM_INIT),",
        "        lm_head=llama3.Linear.Config(",
        f"            in_features={width}, out_features={words}, param_init=llama3._output_linear_init({width})",
        "        ),",
        "        layers=llama3._build_llama3_layers(",
        f"            n_layers={model.layers},",
        f"            dim={width},",
        f"            n_heads={attention.heads},",
        f"            n_kv_heads={attention.key_value_heads},",
        f"            hidden_dim={forward.hidden},",
        f"            rope=llama3.ComplexRoPE.Config({rope}),",
        "            attn_backend=attn_backend,",
        "            tp_gemm_backend=tp_gemm_backend,",
        "        ),",
        "    )",
        "",
        "",
        f'llama3_configs["{OWN_FLAVOUR}"] = planned_model',
    ]


@cache
def _preset(name: str) -> ModelArchitecture:
    return load_model(name)


def _same(model: ModelArchitecture, other: ModelArchitecture) -> bool:
    """One type with the same layers has the same shape if it has as many parameters, in all and active ones."""
    return (model.model_type, model.layers, model.hidden_size, model.vocab_size) == (
        other.model_type,
        other.layers,
        other.hidden_size,
        other.vocab_size,
    ) and (model.parameters, model.active_parameters) == (other.parameters, other.active_parameters)


def model_lines(job: LaunchJob) -> tuple[list[str], list[str]]:
    """Imports, and the lines that make `model_spec`."""
    found = flavour(job.model)
    module, name = found or ("llama3", OWN_FLAVOUR)
    imports = [f"from torchtitan.models.{module} import model_registry"] if found else _llama_lines(job)
    recipe = "nvfp4" if job.strategy["precision"] == "nvfp4" else job.strategy["fp8_recipe"]
    if job.strategy["precision"] not in ("fp8", "nvfp4"):
        return imports, [f'model_spec = model_registry("{name}", attn_backend="{FLEX}")']
    converter, arguments = CONVERTERS[recipe]
    arguments = arguments.format(layers=job.model.layers, tail=NVFP4_BF16_TAIL)
    imports.insert(0, f"from torchtitan.components.quantization import {converter}")
    if recipe == "nvfp4":
        imports.insert(1, "from torchtitan.components.quantization.nvfp4 import nvfp4_bf16_tail_fqns")
    compiled = job.strategy["compile"]
    call = f"{converter}.Config({arguments}, model_compile_enabled={compiled})"
    return imports, [
        f"converters = [{call}]",
        f'model_spec = model_registry("{name}", attn_backend="{FLEX}", converters=converters)',
    ]
