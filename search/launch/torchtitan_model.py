"""The planned model in torchtitan's words: a flavour that it ships, or a Llama of any shape.

Source: pytorch/torchtitan 0.3.0 `models/llama3/__init__.py`, `models/qwen3`, `models/deepseek_v3`, `models/gpt_oss`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from cost_models.architecture import ModelArchitecture
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
    if flavour(job.model) is None:
        return {"model": f"torchtitan has no definition of {job.model.name} (Llama 3, Qwen3, DeepSeek-V3, gpt-oss)"}
    return {}


def flavour(model: ModelArchitecture) -> tuple[str, str] | None:
    """Module and flavour of the shipped model that this one is, whatever it is called."""
    for preset, found in FLAVOURS.items():
        if _same(model, _preset(preset)):
            return found
    return None


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
    assert found is not None  # refused before
    module, name = found
    imports = [f"from torchtitan.models.{module} import model_registry"]
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
