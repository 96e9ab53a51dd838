"""Fills in what strategies leave out, as the Strategy section of the contract says, and says what was filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.defaults import Defaults
from cost_models.distinct import distinct_rows
from cost_models.framework import Framework
from cost_models.layouts import default_layout, largest_stages
from cost_models.problem import Problem
from cost_models.strategy import (
    FLAGS,
    MISSING,
    PRECISIONS,
    RECOMPUTE_MODULES,
    PartialColumns,
    StrategyTable,
    code,
)
from cost_models.workload import FineTuning

ONES: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_size",
    "context_parallel_size",
    "data_parallel_replicate_size",
    "secondary_shard_size",
    "expert_parallel_size",
    "micro_batch_size",
)
"""Sizes that are 1 where they are left out."""
LARGEST_SIZE: Final = 1 << 20
"""Sizes beyond this are more than any cluster or batch has; clipped, products of three stay inside 64 bits."""
FROZEN_DTYPES: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "nvfp4": "bf16", "fp32": "fp32"}
"""Frozen weights under LoRA, by precision: loaded as the checkpoint has them, without fp32 masters (PEFT on a model
loaded with torch_dtype, torchtune's `dtype`, LitGPT's bf16-true)."""


@dataclass(frozen=True)
class ResolvedStrategies:
    """A table with every field filled, and one sentence for each field and value that was filled in."""

    table: StrategyTable
    assumptions: tuple[str, ...]


def resolve_strategies(problem: Problem, partial: PartialColumns) -> ResolvedStrategies:
    """Every strategy with every field filled; values that were given stay as they are."""
    defaults = Defaults(partial)
    for name in ONES:
        defaults.constant(name, 1)
    _fill_sizes(problem, defaults)
    _fill_parallelism(problem, defaults)
    _fill_recomputation(defaults)
    _fill_dtypes(problem, defaults)
    _fill_runtime(defaults)
    columns: dict[str, Any] = {
        name: column.astype(np.bool_) if name in FLAGS else column for name, column in defaults.columns.items()
    }
    return ResolvedStrategies(
        StrategyTable(**columns, layouts=tuple(defaults.layouts)), tuple(sorted(defaults.assumptions))
    )


def _fill_sizes(problem: Problem, defaults: Defaults) -> None:
    sizes = [defaults.columns[f"{kind}_parallel_size"] for kind in ("tensor", "context", "pipeline")]
    taken = np.ones(len(sizes[0]), dtype=np.int64)
    for size in sizes:
        taken *= np.minimum(size, LARGEST_SIZE)
    # At least 1: where the others do not fit, the rule about the degrees reports it.
    remaining = np.maximum(problem.cluster.gpus // taken, 1)
    defaults.derived("data_parallel_size", remaining, "GPUs / (tensor x context x pipeline)")
    tensor = defaults.columns["tensor_parallel_size"]
    follows = defaults.flag(lambda framework: framework.expert_tensor_follows_tensor)
    defaults.derived(
        "expert_tensor_parallel_size",
        np.where(follows, tensor, 1),
        "tensor_parallel_size on megatron-lm, else 1",
    )


def _fill_parallelism(problem: Problem, defaults: Defaults) -> None:
    pipeline, virtual = defaults.columns["pipeline_parallel_size"], defaults.columns["virtual_pipeline_size"]
    defaults.by_framework_and(
        "zero_stage",
        (pipeline > 1).astype(np.int64),
        (
            ("", lambda framework: framework.zero_stage),
            (" with a pipeline", lambda framework: framework.zero_stage_with_pipeline),
        ),
    )
    schedule = np.where(virtual > 1, code("pipeline_schedule", "interleaved"), code("pipeline_schedule", "1f1b"))
    defaults.derived("pipeline_schedule", schedule, "interleaved with virtual_pipeline_size > 1, else 1f1b")
    _fill_layouts(problem, defaults)
    defaults.by_framework(
        "context_parallel_kind",
        lambda framework: framework.context_parallel_kinds[0] if framework.context_parallel_kinds else "ring",
    )
    with_tensor = defaults.flag(lambda framework: framework.sequence_parallel_with_tensor)
    defaults.derived(
        "sequence_parallel",
        (with_tensor & (defaults.columns["tensor_parallel_size"] > 1)).astype(np.int64),
        "true with tensor_parallel_size > 1 on megatron-lm, fsdp2 and nanotron, else false",
    )


def _fill_layouts(problem: Problem, defaults: Defaults) -> None:
    missing = defaults.missing("layers_per_stage")
    if missing is not None and not missing.any():
        return
    pipeline, virtual = (
        np.minimum(defaults.columns[name], LARGEST_SIZE) for name in ("pipeline_parallel_size", "virtual_pipeline_size")
    )
    ends = defaults.flag(lambda framework: framework.embedding_and_loss_count_as_layers)
    by_cost = defaults.flag(lambda framework: framework.splits_layers_by_cost)
    first, which = distinct_rows([pipeline, virtual, ends + 2 * by_cost])
    numbers = [
        defaults.layout_number(
            default_layout(
                problem.model,
                int(pipeline[row]),
                int(virtual[row]),
                ends_count_as_layers=bool(ends[row]),
                by_cost=bool(by_cost[row]),
            )
        )
        for row in first
    ]
    piped = pipeline * virtual > 1
    defaults.derived(
        "layers_per_stage",
        np.array(numbers, dtype=np.int64)[which],
        "equal where it divides; else on megatron-lm with embedding and loss counted as a layer each where that "
        "divides; else best-balanced with both ends counted",
        only=piped & ~by_cost,
    )
    asked = piped & by_cost if missing is None else piped & by_cost & missing
    defaults.say(
        "layers_per_stage",
        "nanotron's own split, which no setting of it changes: a stage ends with the layer that brings the running sum "
        "of matrix costs over its equal share, the head counted at the end",
        asked,
    )


def _fill_recomputation(defaults: Defaults) -> None:
    defaults.constant("activation_checkpointing", "none")
    mode = defaults.columns["activation_checkpointing"]
    selective = mode == code("activation_checkpointing", "selective")
    chooses = selective & defaults.flag(lambda framework: bool(framework.recompute_modules))
    core_attention = 1 << RECOMPUTE_MODULES.index("core_attn")
    defaults.derived(
        "recompute_modules", np.where(chooses, core_attention, 0), "core_attn (megatron-lm, selective)", only=chooses
    )
    used = mode != code("activation_checkpointing", "none")
    largest = largest_stages(
        tuple(defaults.layouts),
        defaults.columns["layers_per_stage"],
        np.minimum(defaults.columns["pipeline_parallel_size"], LARGEST_SIZE),
    )
    defaults.derived(
        "checkpointed_layers", np.where(used, largest, 0), "all layers of a stage where any are recomputed", only=used
    )
    defaults.constant("offload", "none")
    defaults.fraction("offload_fraction")


def _fill_dtypes(problem: Problem, defaults: Defaults) -> None:
    precision = problem.workload.precision
    defaults.derived(
        "precision",
        np.full(len(defaults), code("precision", precision)),
        f"{precision}, as the workload has it",
    )
    precisions = defaults.columns["precision"]
    fp8 = precisions == code("precision", "fp8")
    recipe = defaults.lookup("fp8_recipe", lambda framework: framework.fp8_recipe)
    defaults.derived(
        "fp8_recipe",
        np.where(fp8, recipe, code("fp8_recipe", None)),
        "the framework's usual with precision fp8",
        only=fp8,
    )
    if problem.workload.fine_tuning is None:
        defaults.by_framework_and(
            "parameter_dtype", precisions, tuple((f", {name}", _parameter_dtype(name)) for name in PRECISIONS)
        )
    else:
        _fill_frozen_dtype(problem.workload.fine_tuning, defaults)
    _follow_weights(problem, defaults)
    defaults.by_framework_and(
        "gradient_dtype", precisions, tuple((f", {name}", _gradient_dtype(name)) for name in PRECISIONS)
    )
    if problem.workload.optimizer == "adamw-8bit":
        defaults.constant("optimizer_state_dtype", "int8")
    else:
        defaults.by_framework("optimizer_state_dtype", lambda framework: framework.optimizer_state_dtype)


def _fill_frozen_dtype(fine_tuning: FineTuning, defaults: Defaults) -> None:
    if fine_tuning.method == "qlora":
        defaults.constant("parameter_dtype", "nf4")
        return
    frozen = np.array([code("parameter_dtype", FROZEN_DTYPES[name]) for name in PRECISIONS])
    defaults.derived(
        "parameter_dtype", frozen[defaults.columns["precision"]], "frozen weights in 16 bit, fp32 with precision fp32"
    )


def _follow_weights(problem: Problem, defaults: Defaults) -> None:
    """PyTorch makes gradients, and its optimizers make states, in the dtype of the weights they belong to."""
    stored = defaults.columns["parameter_dtype"]
    sixteen = np.where(stored == code("parameter_dtype", "nf4"), code("parameter_dtype", "bf16"), stored)
    narrow = np.isin(sixteen, [code("parameter_dtype", name) for name in ("bf16", "fp16")])
    follows = narrow & defaults.flag(lambda framework: framework.states_follow_weights)
    names = (
        ["gradient_dtype"]
        if problem.workload.optimizer == "adamw-8bit"
        else ["gradient_dtype", "optimizer_state_dtype"]
    )
    for name in names:
        defaults.derived(name, np.where(follows, sixteen, MISSING), "as the trained weights are stored", only=follows)


# A precision that the framework lacks is against the rules; any dtype keeps the table whole.
def _parameter_dtype(precision: str) -> Callable[[Framework], str]:
    return lambda framework: framework.parameter_dtype.get(precision, "fp32")


def _gradient_dtype(precision: str) -> Callable[[Framework], str]:
    return lambda framework: framework.gradient_dtype.get(precision, "fp32")


def _fill_runtime(defaults: Defaults) -> None:
    defaults.by_framework("overlap_communication", lambda framework: framework.overlap_communication)
    defaults.by_framework("kernels", lambda framework: framework.kernels)
    defaults.by_framework("gradient_as_bucket_view", lambda framework: framework.gradient_as_bucket_view)
    defaults.by_framework("expandable_segments", lambda framework: framework.expandable_segments)
    defaults.constant("compile", False)
    defaults.constant("cuda_graphs", False)
    defaults.constant("checkpoint_loading", "sharded")
    defaults.constant("checkpoint_saving", "sharded")
