"""What no launch target can start today: valid, priced in estimates, searched only where `space` names the field.

Each exclusion says in words what stands in the way, and is listed in the assumptions of a search that it narrows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.layouts import largest_stages, recomputed_in_each_chunk
from cost_models.strategy import BoolColumn, StrategyTable
from search.problem import SearchProblem
from search.space import allows


@dataclass(frozen=True)
class Exclusion:
    """Strategies of one framework that nothing starts."""

    framework: str
    fields: tuple[str, ...]
    """Any of these in `space` brings them back."""
    words: str
    where: Callable[[StrategyTable, int], BoolColumn]
    """(n,) of a table and the number of nodes."""
    adapters_only: bool = False
    """Only where adapters are trained (LoRA, QLoRA)."""
    biased_experts_only: bool = False
    """Only models whose experts have biases (gpt-oss)."""

    def narrows(self, search: SearchProblem) -> bool:
        """Whether it applies to a search."""
        trains = not self.adapters_only or search.workload.fine_tuning is not None
        concerns = not self.biased_experts_only or _has_biased_experts(search)
        return trains and concerns and not search.space.keys() & set(self.fields)


def _has_biased_experts(search: SearchProblem) -> bool:
    mixtures = (block.experts for block in search.model.blocks if block.experts)
    return any(linear.bias for experts in mixtures for linear in experts.routed.linears)


def startable(search: SearchProblem, cluster: int, table: StrategyTable) -> BoolColumn:
    """(n,) whether some launch target of its framework starts a resolved strategy, or `space` asks for it."""
    nodes = search.clusters[cluster].nodes
    result = np.ones(len(table), dtype=np.bool_)
    for exclusion in EXCLUSIONS:
        if exclusion.narrows(search):
            own = np.flatnonzero(table.is_choice("framework", exclusion.framework))
            if len(own):
                result[own] &= ~exclusion.where(table.take(own), nodes)
    return result


def searched(search: SearchProblem, cluster: int, table: StrategyTable) -> BoolColumn:
    """(n,) whether a resolved strategy is one that the search is about: named by `space`, and startable."""
    return allows(search.space, table) & startable(search, cluster, table)


def exclusions_in_words(framework: str, search: SearchProblem) -> tuple[str, ...]:
    """What is left out of a search of one framework."""
    return tuple(
        f"space.{exclusion.fields[0]} left out: not searched on {framework}: {exclusion.words}"
        for exclusion in EXCLUSIONS
        if exclusion.framework == framework and exclusion.narrows(search)
    )


def _model_parallel_pipeline(table: StrategyTable, _: int) -> BoolColumn:
    sizes = table.tensor_parallel_size * table.context_parallel_size * table.expert_parallel_size
    split: BoolColumn = (table.pipeline_parallel_size > 1) & (sizes > 1)
    return split


def _ulysses_beside_tensor(table: StrategyTable, _: int) -> BoolColumn:
    both: BoolColumn = (table.context_parallel_size > 1) & (table.tensor_parallel_size > 1)
    return both


def _replicated(table: StrategyTable, _: int) -> BoolColumn:
    replicated: BoolColumn = table.data_parallel_replicate_size > 1
    return replicated


def _replicated_unlike_nodes(table: StrategyTable, nodes: int) -> BoolColumn:
    unlike: BoolColumn = table.data_parallel_replicate_size != nodes
    return _replicated(table, nodes) & unlike


def _in_part(table: StrategyTable, _: int) -> BoolColumn:
    largest = largest_stages(table.layouts, table.layers_per_stage, table.pipeline_parallel_size)
    part: BoolColumn = table.checkpointed_layers < largest
    return table.is_choice("activation_checkpointing", "full") & part


def _in_part_of_a_pipeline(table: StrategyTable, nodes: int) -> BoolColumn:
    piped: BoolColumn = table.pipeline_parallel_size > 1
    return piped & _in_part(table, nodes)


def _unequal_in_chunks(table: StrategyTable, nodes: int) -> BoolColumn:
    refused = _in_part(table, nodes)
    rows = np.flatnonzero(refused)
    part = table.take(rows)
    columns = [part.layers_per_stage, part.pipeline_parallel_size, part.checkpointed_layers]
    first, which = distinct_rows(columns)
    none = [
        recomputed_in_each_chunk(table.layouts[layout], stages, layers) is None
        for layout, stages, layers in zip(*(column[first].tolist() for column in columns), strict=True)
    ]
    refused[rows] = np.array(none, dtype=np.bool_)[which]
    return refused


def _split_experts(table: StrategyTable, _: int) -> BoolColumn:
    split: BoolColumn = table.expert_tensor_parallel_size > 1
    return split


def _ring(table: StrategyTable, _: int) -> BoolColumn:
    split: BoolColumn = table.context_parallel_size > 1
    return split & table.is_choice("context_parallel_kind", "ring")


def _tensorwise(table: StrategyTable, _: int) -> BoolColumn:
    return table.is_choice("precision", "fp8") & table.is_choice("fp8_recipe", "tensorwise")


def _piped(table: StrategyTable, _: int) -> BoolColumn:
    piped: BoolColumn = table.pipeline_parallel_size > 1
    return piped


def _more_than_shards(table: StrategyTable, nodes: int) -> BoolColumn:
    split: BoolColumn = table.tensor_parallel_size * table.expert_parallel_size > 1
    return split | _piped(table, nodes) | table.is_choice("activation_checkpointing", "selective")


def _unsharded(table: StrategyTable, _: int) -> BoolColumn:
    unsharded: BoolColumn = table.zero_stage == 0
    return unsharded


def _narrow_beside_offload(table: StrategyTable, _: int) -> BoolColumn:
    return table.is_choice("parameter_dtype", "fp8") & table.is_choice("offload", "optimizer")


SEARCHED_FP8_RECIPES: Final = {"fsdp2": "rowwise"}
"""Where a framework's usual recipe of fp8 cannot be started any more: the one that is searched."""
EXCLUSIONS: Final = (
    Exclusion(
        "megatron-lm",
        ("checkpointed_layers",),
        "numbers of recomputed layers that are not the same in every model chunk (--recompute-num-layers)",
        _unequal_in_chunks,
    ),
    Exclusion(
        "megatron-lm",
        ("parameter_dtype",),
        "fp8 weights beside an optimizer on the CPU (megatron/training/arguments.py)",
        _narrow_beside_offload,
    ),
    Exclusion(
        "megatron-lm",
        ("expert_tensor_parallel_size",),
        "experts with biases that are split over tensor ranks (megatron/core/transformer/transformer_config.py)",
        _split_experts,
        biased_experts_only=True,
    ),
    Exclusion(
        "deepspeed",
        ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size"),
        "tensor, context or expert parallelism beside a pipeline, whose groups the model's own code has to build "
        "(Megatron-DeepSpeed)",
        _model_parallel_pipeline,
    ),
    Exclusion(
        "deepspeed",
        ("tensor_parallel_size", "context_parallel_size"),
        "Ulysses beside automatic tensor parallelism",
        _ulysses_beside_tensor,
    ),
    Exclusion("deepspeed", ("data_parallel_replicate_size",), "MiCS, which DeepSpeed 0.19 removed", _replicated),
    Exclusion(
        "deepspeed",
        ("checkpointed_layers",),
        "recomputing some layers of a pipeline's stage (PipelineModule's activation_checkpoint_interval)",
        _in_part_of_a_pipeline,
    ),
    Exclusion(
        "fsdp2",
        ("checkpointed_layers",),
        "recomputing some layers and not others, which torchtitan 0.3 has no setting for",
        _in_part,
    ),
    Exclusion(
        "fsdp2",
        ("context_parallel_kind",),
        "a ring of keys and values: torchtitan 0.3 gathers them (FlexAttention)",
        _ring,
    ),
    Exclusion(
        "fsdp2", ("fp8_recipe",), "tensorwise fp8, which torchtitan 0.3 removed; rowwise is searched", _tensorwise
    ),
    Exclusion(
        "fsdp2",
        ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "activation_checkpointing"),
        "adapters with more than sharded data parallelism and whole recomputed layers: torchtitan's LoRA wraps fused "
        "projections, Accelerate has no more",
        _more_than_shards,
        adapters_only=True,
    ),
    Exclusion(
        "fsdp2",
        ("zero_stage",),
        "adapters without shards, which Accelerate starts as ddp",
        _unsharded,
        adapters_only=True,
    ),
    Exclusion(
        "deepspeed",
        ("pipeline_parallel_size",),
        "adapters in a pipeline, whose layers the model's own code defines",
        _piped,
        adapters_only=True,
    ),
    Exclusion(
        "fsdp1",
        ("data_parallel_replicate_size",),
        "replicas of the shards other than one for each node (HYBRID_SHARD)",
        _replicated_unlike_nodes,
    ),
)
