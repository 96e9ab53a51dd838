"""Every framework, every axis and every field of a strategy is explored: by default, or where `space` names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.codes import VIOLATIONS, decode
from cost_models.frameworks import FRAMEWORKS, framework_named
from cost_models.layouts import balanced_layout, busiest_stages, default_layout, head_cost_in_layers
from cost_models.rules import violations
from cost_models.strategy import COLUMNS, StrategyTable, concatenate
from cost_models.workload import FineTuning, Workload
from search import SearchProblem
from search.evaluator import Evaluator
from search.lattice import build_lattice
from search.layer_layouts import LEAST_GAIN
from search.space import allows
from tests.search.problems import cluster, run, small_search

TWO_NODES = (cluster("dgx-h100", 2),)
EXPERTS = "mixtral-8x7b"
ONE_LAYOUT: Mapping[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (2,),
    "context_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "virtual_pipeline_size": (1,),
    "micro_batch_size": (1,),
}


def valid_strategies(search: SearchProblem, framework: str) -> StrategyTable:
    """Everything that a sweep could score: the lattice of one framework, without what breaks a rule."""
    evaluator = Evaluator(search)
    lattice = build_lattice(search, search.clusters[0], framework_named(framework))
    choices = range(len(lattice.axes.checkpointing))
    rows = lattice.with_checkpointing(lattice.with_micro_batches(lattice.layouts), choices)
    tables = []
    for offload in lattice.axes.offload:
        table = evaluator.resolve(0, lattice.with_offload(rows, offload))
        sound = violations(search.problems[0], table) == 0
        tables.append(table.take(sound & allows(search.space, table)))
    return concatenate(tables)


def values(table: StrategyTable, name: str) -> set[Any]:
    rows = np.unique(getattr(table, name), return_index=True)[1]
    found = [table.value(name, int(row)) for row in rows]
    return {tuple(value) if isinstance(value, list) else value for value in found}


DEFAULTS: Mapping[str, tuple[str, Mapping[str, set[Any]]]] = {
    "megatron-lm": (
        "llama-3-8b",
        {
            "tensor_parallel_size": {1, 2, 4, 8},
            "context_parallel_size": {1, 2, 4},
            "pipeline_parallel_size": {1, 2, 4, 8, 16},
            "virtual_pipeline_size": {1, 2, 4, 8},
            "pipeline_schedule": {"1f1b", "interleaved"},
            "zero_stage": {0, 1, 2, 3},
            "data_parallel_replicate_size": {1, 2},
            "micro_batch_size": {1, 2, 4, 8},
            "activation_checkpointing": {"none", "selective", "full"},
            "offload": {"none", "optimizer"},
            "offload_fraction": {0.5, 1.0},
            "checkpointed_layers": {0, 8, 16, 24, 32},
        },
    ),
    "deepspeed": (
        "llama-3-8b",
        {
            "tensor_parallel_size": {1, 2, 4, 8},
            "context_parallel_size": {1, 2, 4},
            "pipeline_parallel_size": {1, 2, 4, 8, 16},
            "zero_stage": {0, 1, 2, 3},
            "data_parallel_replicate_size": {1, 2},
            "secondary_shard_size": {1, 4, 8},
            "activation_checkpointing": {"none", "full"},
            "offload": {"none", "optimizer", "optimizer-and-parameters", "nvme"},
            "offload_fraction": {0.5, 1.0},
        },
    ),
    "fsdp2": (
        "llama-3-8b",
        {
            "tensor_parallel_size": {1, 2, 4, 8},
            "pipeline_schedule": {"1f1b", "interleaved", "zero-bubble"},
            "zero_stage": {0, 2, 3},
            "data_parallel_replicate_size": {1, 2},
            "activation_checkpointing": {"none", "selective", "full"},
            "offload": {"none", "optimizer-and-parameters"},
        },
    ),
    "fsdp1": (
        "llama-3-8b",
        {"zero_stage": {2, 3}, "data_parallel_replicate_size": {1, 2}, "activation_checkpointing": {"none", "full"}},
    ),
    "ddp": ("gpt-2-xl", {"zero_stage": {0}, "micro_batch_size": {1, 2}, "activation_checkpointing": {"none", "full"}}),
    "nanotron": (
        "llama-3-8b",
        {
            "tensor_parallel_size": {1, 2, 4, 8},
            "pipeline_parallel_size": {1, 2, 4, 8, 16},
            "zero_stage": {0, 1},
            "activation_checkpointing": {"none", "full"},
        },
    ),
}


@pytest.mark.parametrize("framework", [framework.name for framework in FRAMEWORKS])
def test_every_axis_of_every_framework_is_explored_by_default(framework: str) -> None:
    model, expected = DEFAULTS[framework]
    workload = Workload(sequence_length=1024 if model == "gpt-2-xl" else 4096, global_batch_size=32)
    table = valid_strategies(small_search(model, clusters=TWO_NODES, workload=workload), framework)
    for name, wanted in expected.items():
        assert values(table, name) >= wanted, name


@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "deepspeed"])
def test_experts_are_spread_by_default(framework: str) -> None:
    table = valid_strategies(small_search(EXPERTS, clusters=TWO_NODES), framework)
    assert values(table, "expert_parallel_size") == {1, 2, 4, 8}
    if framework == "megatron-lm":
        assert values(table, "expert_tensor_parallel_size") == {1, 2, 4, 8}


FIELDS: tuple[tuple[str, str, Mapping[str, tuple[Any, ...]]], ...] = (
    ("megatron-lm", "llama-3-8b", {"sequence_parallel": (True, False)}),
    ("megatron-lm", "llama-3-8b", {"context_parallel_kind": ("ring", "all-gather", "all-to-all")}),
    ("fsdp2", "llama-3-8b", {"context_parallel_kind": ("ring", "all-gather")}),
    ("megatron-lm", "llama-3-8b", {"precision": ("bf16", "fp16", "fp8", "fp32")}),
    ("fsdp2", "llama-3-8b", {"precision": ("bf16", "fp8"), "fp8_recipe": (None, "tensorwise", "rowwise")}),
    ("megatron-lm", "llama-3-8b", {"offload": ("none", "activations"), "offload_fraction": (0.25, 0.5, 1.0)}),
    ("deepspeed", "llama-3-8b", {"secondary_shard_size": (1, 2, 4)}),
    ("fsdp2", "llama-3-8b", {"data_parallel_replicate_size": (1, 2, 4)}),
    ("megatron-lm", "llama-3-8b", {"checkpointed_layers": (3, 7, 11)}),
    ("megatron-lm", "llama-3-8b", {"recompute_modules": (("core_attn",), ("core_attn", "mlp"), ("layernorm",))}),
    ("megatron-lm", "llama-3-8b", {"layers_per_stage": ((16, 16), (17, 15), (18, 14)), "pipeline_parallel_size": (2,)}),
    ("megatron-lm", "llama-3-8b", {"pipeline_schedule": ("1f1b", "zero-bubble"), "virtual_pipeline_size": (1, 2)}),
    ("fsdp2", "llama-3-8b", {"pipeline_schedule": ("1f1b", "gpipe")}),
    ("megatron-lm", EXPERTS, {"expert_parallel_size": (2, 4), "expert_tensor_parallel_size": (1, 2, 4)}),
    ("fsdp2", EXPERTS, {"expert_tensor_parallel_size": (1, 2)}),
    ("megatron-lm", "llama-3-8b", {"gradient_dtype": ("fp32", "bf16"), "optimizer_state_dtype": ("fp32", "bf16")}),
    ("fsdp2", "llama-3-8b", {"parameter_dtype": ("fp32", "bf16")}),
    ("fsdp2", "llama-3-8b", {"compile": (True, False), "overlap_communication": (True, False)}),
    ("megatron-lm", "llama-3-8b", {"cuda_graphs": (True, False), "kernels": ("fused", "eager")}),
    ("ddp", "gpt-2-xl", {"gradient_as_bucket_view": (True, False), "expandable_segments": (True, False)}),
    (
        "fsdp2",
        "llama-3-8b",
        {"checkpoint_loading": ("sharded", "rank0", "every-rank"), "checkpoint_saving": ("sharded", "full")},
    ),
    ("megatron-lm", "llama-3-8b", {"zero_stage": (0, 1, 2, 3), "data_parallel_size": (2, 4, 8)}),
    ("megatron-lm", "llama-3-8b", {"activation_checkpointing": ("none", "selective", "full")}),
)


@pytest.mark.parametrize(("framework", "model", "space"), FIELDS, ids=[" ".join(space) for _, _, space in FIELDS])
def test_every_value_that_space_names_is_explored(
    framework: str, model: str, space: Mapping[str, tuple[Any, ...]]
) -> None:
    workload = Workload(sequence_length=1024 if model == "gpt-2-xl" else 4096, global_batch_size=32)
    search = small_search(model, clusters=TWO_NODES, space=space, frameworks=(framework,), workload=workload)
    table = valid_strategies(search, framework)
    for name, wanted in space.items():
        assert values(table, name) == set(wanted), name


def test_every_field_of_a_strategy_is_among_those_tested() -> None:
    by_default = {name for _, expected in DEFAULTS.values() for name in expected}
    named = {name for _, _, space in FIELDS for name in space}
    assert by_default | named | {"framework"} == set(COLUMNS)


def test_precision_that_the_request_leaves_open_is_searched() -> None:
    space = {**ONE_LAYOUT, "precision": ("bf16", "fp8")}
    result = run(small_search("llama-3-8b", frameworks=("megatron-lm",), space=space, trials=0, plans=100))
    assert {plan["strategy"]["precision"] for plan in result.plans} == {"bf16", "fp8"}
    # A matrix product takes half the time in fp8.
    assert result.plans[0]["strategy"]["precision"] == "fp8"


def test_adapters_are_searched_on_every_framework_that_has_them() -> None:
    workload = Workload(sequence_length=4096, global_batch_size=32, fine_tuning=FineTuning("lora"))
    for framework in FRAMEWORKS:
        search = small_search("llama-3-8b", workload=workload, frameworks=(framework.name,))
        assert bool(len(valid_strategies(search, framework.name))) == ("lora" in framework.fine_tuning), framework.name


UNEVEN = {
    "gemma-2-27b": (46, 2),
    "deepseek-v2": (60, 8),
    "deepseek-v3": (61, 8),
    "qwen3-235b-a22b": (94, 4),
    "llama-3.1-405b": (126, 8),
}


@pytest.mark.parametrize("pipeline", [4, 8, 16])
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "deepspeed"])
@pytest.mark.parametrize("model", UNEVEN)
def test_pipelines_over_layers_that_do_not_divide_are_in_the_lattice(model: str, framework: str, pipeline: int) -> None:
    layers, tensor = UNEVEN[model]
    space = {**ONE_LAYOUT, "pipeline_parallel_size": (pipeline,), "tensor_parallel_size": (tensor,)}
    del space["virtual_pipeline_size"]
    search = small_search(
        model,
        clusters=(cluster("dgx-h100", 16),),
        workload=Workload(4096, 256),
        frameworks=(framework,),
        space={**space, "activation_checkpointing": ("full",), "offload": ("none",)},
    )
    table = valid_strategies(search, framework)
    layouts = values(table, "layers_per_stage")
    assert all(sum(layout) == layers for layout in layouts)
    kind = framework_named(framework)
    head = head_cost_in_layers(search.model)
    for virtual in values(table, "virtual_pipeline_size"):
        default = default_layout(
            search.model, pipeline, virtual, ends_count_as_layers=kind.embedding_and_loss_count_as_layers
        )
        assert default in layouts
        tried = [layout for layout in layouts if len(layout) == pipeline * virtual]
        every = (balanced_layout(search.model, pipeline, virtual), *tried)
        balanced, *loads = busiest_stages(every, np.arange(len(every)), np.full(len(every), pipeline), head)
        assert min(loads) * (1 - LEAST_GAIN) <= balanced


BY_HAND: tuple[tuple[str, int, int, bool, tuple[int, ...]], ...] = (
    # 46 layers and two ends are 48; the head of 256,000 words counts as 2.08 layers where the ends are not counted.
    ("gemma-2-27b", 4, 1, True, (11, 12, 12, 11)),
    ("gemma-2-27b", 4, 1, False, (12, 12, 12, 10)),
    ("gemma-2-27b", 8, 1, True, (5, 6, 6, 6, 6, 6, 6, 5)),
    ("gemma-2-27b", 8, 1, False, (6, 6, 6, 6, 6, 6, 6, 4)),
    ("gemma-2-27b", 16, 1, True, (2, *(3,) * 14, 2)),
    ("gemma-2-27b", 16, 1, False, (*(3,) * 15, 1)),
    # 60 = 4 x 15; 62 divides by neither 8 nor 16; the head counts as 1.55 layers.
    ("deepseek-v2", 4, 1, True, (15, 15, 15, 15)),
    ("deepseek-v2", 8, 1, True, (7, 7, 8, 8, 8, 8, 8, 6)),
    ("deepseek-v2", 16, 1, False, (3, 3, *(4,) * 13, 2)),
    # 61 and 63 divide by none; the head counts as 1.58 layers.
    ("deepseek-v3", 4, 1, True, (15, 16, 16, 14)),
    ("deepseek-v3", 8, 1, True, (7, 8, 8, 8, 8, 8, 8, 6)),
    # 94 + 2 = 96 = 16 x 6 = 8 x 4 x 3.
    ("qwen3-235b-a22b", 16, 1, True, (5, *(6,) * 14, 5)),
    ("qwen3-235b-a22b", 16, 1, False, (*(6,) * 15, 4)),
    ("qwen3-235b-a22b", 8, 4, True, (2, *(3,) * 30, 2)),
    # 126 + 2 = 128 = 16 x 8 = 8 x 8 x 2.
    ("llama-3.1-405b", 8, 8, True, (1, *(2,) * 62, 1)),
    ("llama-3.1-405b", 16, 1, True, (7, *(8,) * 14, 7)),
    ("llama-3.1-405b", 16, 1, False, (7, *(8,) * 14, 7)),
)


@pytest.mark.parametrize(("model", "pipeline", "virtual", "ends", "layers"), BY_HAND)
def test_default_layouts_by_hand(model: str, pipeline: int, virtual: int, ends: bool, layers: tuple[int, ...]) -> None:
    assert default_layout(load_model(model), pipeline, virtual, ends_count_as_layers=ends) == layers


FASTEST = (
    ("llama-3-8b", "megatron-lm", 4, 1),
    ("llama-3-8b", "deepspeed", 4, 1),
    ("llama-3-8b", "fsdp2", 4, 1),
    ("gemma-2-27b", "megatron-lm", 4, 2),
    ("gpt-oss-20b", "megatron-lm", 4, 1),
    ("llama-2-13b", "megatron-lm", 4, 1),
)


@pytest.mark.parametrize(("model", "framework", "pipeline", "tensor"), FASTEST)
def test_of_all_layouts_the_lattice_has_the_fastest(model: str, framework: str, pipeline: int, tensor: int) -> None:
    space = {**ONE_LAYOUT, "tensor_parallel_size": (tensor,), "pipeline_parallel_size": (pipeline,)}
    search = small_search(
        model,
        frameworks=(framework,),
        space={**space, "activation_checkpointing": ("none",), "zero_stage": (1, 2), "offload": ("none",)},
    )
    table = valid_strategies(search, framework)
    layers = search.model.layers
    cuts = ((0, *inner, layers) for inner in combinations(range(1, layers), pipeline - 1))
    every = [[after - before for before, after in pairwise(edges)] for edges in cuts]
    base = table.row(0)
    scored = Evaluator(search).evaluate_strategies(0, [{**base, "layers_per_stage": layout} for layout in every])
    ours = Evaluator(search).evaluate(0, table).step_seconds
    assert scored.valid.all(), decode(VIOLATIONS, int(scored.violations.max()))
    assert ours.min() <= scored.step_seconds.min() * (1 + 1e-9)


def test_a_balanced_pipeline_wins_where_the_head_is_heavy() -> None:
    # The head of 128,256 words is worth 1.2 of the 80 layers: equal stages wait for the last one.
    slow = resolve_cluster(
        {
            "nodes": 4,
            "gpus_per_node": 8,
            "gpu": "a100-sxm4-80gb",
            "inter_node": {"kind": "ethernet", "gbps_per_gpu": 12.5},
        }
    )
    search = small_search(
        "llama-3-70b", clusters=(slow,), workload=Workload(4096, 128), frameworks=("megatron-lm",), trials=0
    )
    best = run(search).plans[0]["strategy"]
    assert (best["pipeline_parallel_size"], best["virtual_pipeline_size"]) == (4, 4)
    assert [sum(best["layers_per_stage"][stage::4]) for stage in range(4)] == [20, 20, 21, 19]


def test_a_second_copy_of_the_shards_wins_where_nodes_are_far_apart_and_states_need_them_all() -> None:
    # 32 billion parameters: 16 bytes of each are more than the 8 GPUs of a node have, 2 bytes are not.
    slow = resolve_cluster(
        {
            "nodes": 8,
            "gpus_per_node": 8,
            "gpu": "a100-sxm4-80gb",
            "inter_node": {"kind": "ethernet", "gbps_per_gpu": 25},
        }
    )
    search = small_search(
        "qwen2.5-32b",
        clusters=(slow,),
        workload=Workload(4096, 256),
        frameworks=("deepspeed",),
        space={"tensor_parallel_size": (1,), "pipeline_parallel_size": (1,), "zero_stage": (3,)},
        trials=0,
    )
    result = run(search)
    best = result.plans[0]
    assert best["strategy"]["secondary_shard_size"] == 8
    without = run(replace(search, space={**search.space, "secondary_shard_size": (1,)}))
    assert best["time"]["step_seconds"] < without.plans[0]["time"]["step_seconds"]
