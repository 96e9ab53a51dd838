"""Precision, dtypes, attention kernels and fine-tuning: what the GPU and the framework can compute."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.rules.view import Rule, View
from cost_models.strategy import PRECISIONS, BoolColumn

LARGEST_FLASH_HEAD: Final = 256
"""FlashAttention-2 and -3 kernels take head dimensions up to this (README of flash-attn)."""
RECIPE_GENERATIONS: Final = {
    # Transformer Engine: MXFP8 needs compute capability 10.0; CDNA4 has the same block-scaled matrix instructions.
    "mxfp8": ("blackwell", "cdna4"),
    # Transformer Engine: Float8BlockScaling needs compute capability 9.0; CDNA3 and CDNA4 through Composable Kernel.
    "blockwise": ("hopper", "blackwell", "cdna3", "cdna4"),
}


def _gpu(view: View) -> BoolColumn:
    lacks = np.array([not view.cluster.gpu.supports(precision) for precision in PRECISIONS], dtype=np.bool_)
    return lacks[view.table.precision]


def _gpu_says(view: View) -> str:
    return f"{view.cluster.gpu.name} has no {view.value('precision')}"


def _recipe(view: View) -> BoolColumn:
    generation = view.cluster.gpu.generation
    refused = [name for name, able in RECIPE_GENERATIONS.items() if generation is not None and generation not in able]
    return view.table.is_choice("precision", "fp8") & view.table.is_choice("fp8_recipe", *refused)


def _recipe_says(view: View) -> str:
    return f"{view.cluster.gpu.name} ({view.cluster.gpu.generation}) has no fp8_recipe {view.value('fp8_recipe')}"


def _framework(view: View) -> BoolColumn:
    return ~view.allows("precision", lambda framework: framework.precisions)


def _framework_says(view: View) -> str:
    return f"{view.framework.name} does not train in {view.value('precision')}"


def _fp8_weights(view: View) -> BoolColumn:
    return view.table.is_choice("parameter_dtype", "fp8") & ~view.table.is_choice("precision", "fp8")


def _fp8_weights_say(view: View) -> str:
    return f"parameter_dtype fp8 needs precision fp8, not {view.value('precision')}"


def _stale_weights(view: View) -> BoolColumn | bool:
    # Nothing else writes what was learned into 8-bit weights: they would never change (Megatron-LM refuses it,
    # training/arguments.py). Frozen ones need not.
    writes = view.able(lambda framework: bool(framework.requantised_zero_stages))
    stale = writes & ~view.allows("zero_stage", lambda framework: framework.requantised_zero_stages)
    return view.workload.fine_tuning is None and view.table.is_choice("parameter_dtype", "fp8") & stale


def _stale_weights_say(view: View) -> str:
    stages = ", ".join(str(stage) for stage in view.framework.requantised_zero_stages)
    return f"parameter_dtype fp8 needs zero_stage {stages} on {view.framework.name}, not {view.value('zero_stage')}"


def _qlora(view: View) -> bool:
    return view.workload.fine_tuning is not None and view.workload.fine_tuning.method == "qlora"


def _nf4(view: View) -> BoolColumn | bool:
    return not _qlora(view) and view.table.is_choice("parameter_dtype", "nf4")


def _nf4_says(view: View) -> str:
    return f"parameter_dtype {view.value('parameter_dtype')} needs fine_tuning with method qlora"


def _unquantised(view: View) -> BoolColumn | bool:
    return _qlora(view) and ~view.table.is_choice("parameter_dtype", "nf4", "bf16", "fp16")


def _unquantised_says(view: View) -> str:
    return f"qlora keeps what it does not quantise in 16 bit, not in parameter_dtype {view.value('parameter_dtype')}"


def _int8(view: View) -> BoolColumn:
    able = view.able(lambda framework: "adamw-8bit" in framework.optimizers)
    states = view.table.is_choice("optimizer_state_dtype", "int8") & ~able
    return states | view.table.is_choice("gradient_dtype", "int8")


def _int8_says(view: View) -> str:
    if view.value("gradient_dtype") == "int8":
        return "no framework keeps gradients in int8"
    return f"{view.framework.name} has no 8-bit optimizer states"


def _no_flash(view: View) -> bool:
    return view.workload.attention == "flash" and not view.cluster.gpu.flash_attention


def _no_flash_says(view: View) -> str:
    return f"{view.cluster.gpu.name} has no flash attention kernel"


def _wide_heads(view: View) -> bool:
    return view.workload.attention == "flash" and max(view.dimensions.head_dims) > LARGEST_FLASH_HEAD


def _wide_heads_say(view: View) -> str:
    return f"flash attention takes head_dim up to {LARGEST_FLASH_HEAD}, not {max(view.dimensions.head_dims)}"


def _eager_context(view: View) -> BoolColumn | bool:
    # After an all-to-all every rank sees whole sequences, which any kernel can attend to; pieces need a kernel that
    # returns the softmax statistics.
    return view.workload.attention == "eager" and (
        (view.context > 1) & ~view.table.is_choice("context_parallel_kind", "all-to-all")
    )


def _eager_context_says(view: View) -> str:
    return f"{view.value('context_parallel_kind')} context parallelism needs flash attention"


def _fine_tuning(view: View) -> BoolColumn | bool:
    tuning = view.workload.fine_tuning
    return tuning is not None and ~view.able(lambda framework: tuning.method in framework.fine_tuning)


def _fine_tuning_says(view: View) -> str:
    assert view.workload.fine_tuning is not None  # else the rule holds
    return f"{view.framework.name} has no {view.workload.fine_tuning.method}"


def _split_nf4(view: View) -> BoolColumn | bool:
    split = (view.tensor > 1) | (view.pipeline > 1) | (view.expert > 1)
    return _qlora(view) and split


def _split_nf4_says(view: View) -> str:
    split = {"tensor": view.tensor, "pipeline": view.pipeline, "expert": view.expert}
    names = ", ".join(f"{name}_parallel_size {size[0]}" for name, size in split.items() if size[0] > 1)
    return f"qlora keeps weights in packed 4-bit blocks, which cannot be split ({names})"


NUMERICS: Final = (
    Rule("precision_unsupported_by_gpu", _gpu, _gpu_says),
    Rule("precision_unsupported_by_gpu", _recipe, _recipe_says),
    Rule("precision_unsupported_by_framework", _framework, _framework_says),
    Rule("precision_unsupported_by_framework", _fp8_weights, _fp8_weights_say),
    Rule("precision_unsupported_by_framework", _stale_weights, _stale_weights_say),
    Rule("precision_unsupported_by_framework", _nf4, _nf4_says),
    Rule("precision_unsupported_by_framework", _unquantised, _unquantised_says),
    Rule("precision_unsupported_by_framework", _int8, _int8_says),
    Rule("attention_unsupported", _no_flash, _no_flash_says),
    Rule("attention_unsupported", _wide_heads, _wide_heads_say),
    Rule("attention_unsupported", _eager_context, _eager_context_says),
    Rule("fine_tuning_unsupported", _fine_tuning, _fine_tuning_says),
    Rule("fine_tuning_unsupported", _split_nf4, _split_nf4_says),
)
