"""Defaults of strategies: every rule of the contract's Strategy section."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.resolve import resolve_strategies
from cost_models.strategy import COLUMNS, FRAMEWORKS, PartialColumns, StrategyTable, partial_columns
from cost_models.workload import FineTuning
from tests.cost_models.problems import make_problem, resolved

DGX = {"preset": "dgx-h100", "nodes": 8}
PROBLEM = make_problem("llama-3-70b", DGX)

SIZES = st.sampled_from([1, 2, 3, 4, 8])
STRATEGIES = st.fixed_dictionaries(
    {"framework": st.sampled_from(FRAMEWORKS)},
    optional={
        "tensor_parallel_size": SIZES,
        "pipeline_parallel_size": SIZES,
        "virtual_pipeline_size": st.sampled_from([1, 2]),
        "context_parallel_size": st.sampled_from([1, 2]),
        "data_parallel_size": SIZES,
        "zero_stage": st.integers(0, 3),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "recompute_modules": st.lists(st.sampled_from(["core_attn", "mlp"]), unique=True),
        "checkpointed_layers": st.integers(0, 80),
        "sequence_parallel": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp16", "fp8", "fp32"]),
        "offload_fraction": st.floats(0, 1),
        "layers_per_stage": st.sampled_from([[80], [40, 40], [39, 41]]),
    },
)


def first(strategy: dict[str, Any], **workload: Any) -> dict[str, Any]:
    return resolved(make_problem("llama-3-70b", DGX, **workload), strategy).row(0)


def test_the_example_of_the_contract() -> None:
    given_fields = {
        "framework": "megatron-lm",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "zero_stage": 1,
        "activation_checkpointing": "selective",
    }
    assert first(given_fields) == {
        "framework": "megatron-lm",
        "data_parallel_size": 8,
        "data_parallel_replicate_size": 1,
        "secondary_shard_size": 1,
        "tensor_parallel_size": 4,
        "sequence_parallel": True,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 1,
        "pipeline_schedule": "1f1b",
        "layers_per_stage": [40, 40],
        "context_parallel_size": 1,
        "context_parallel_kind": "ring",
        "expert_parallel_size": 1,
        "expert_tensor_parallel_size": 4,
        "zero_stage": 1,
        "micro_batch_size": 1,
        "activation_checkpointing": "selective",
        "recompute_modules": ["core_attn"],
        "checkpointed_layers": 40,
        "offload": "none",
        "offload_fraction": 1.0,
        "precision": "bf16",
        "fp8_recipe": None,
        "parameter_dtype": "bf16",
        "gradient_dtype": "fp32",
        "optimizer_state_dtype": "fp32",
        "overlap_communication": True,
        "compile": False,
        "kernels": "fused",
        "cuda_graphs": False,
        "gradient_as_bucket_view": True,
        "expandable_segments": False,
        "checkpoint_loading": "sharded",
        "checkpoint_saving": "sharded",
    }


@pytest.mark.parametrize(
    ("strategy", "field", "value"),
    [
        ({"framework": "ddp"}, "data_parallel_size", 64),
        ({"framework": "nanotron", "tensor_parallel_size": 8, "context_parallel_size": 2}, "data_parallel_size", 4),
        ({"framework": "ddp", "tensor_parallel_size": 128}, "data_parallel_size", 1),
        ({"framework": "ddp"}, "zero_stage", 0),
        ({"framework": "deepspeed"}, "zero_stage", 0),
        ({"framework": "nanotron"}, "zero_stage", 0),
        ({"framework": "megatron-lm"}, "zero_stage", 0),
        ({"framework": "fsdp1"}, "zero_stage", 3),
        ({"framework": "fsdp2"}, "zero_stage", 3),
        ({"framework": "fsdp2", "pipeline_parallel_size": 2}, "zero_stage", 2),
        ({"framework": "fsdp2", "tensor_parallel_size": 8}, "sequence_parallel", True),
        ({"framework": "fsdp2"}, "sequence_parallel", False),
        ({"framework": "deepspeed", "tensor_parallel_size": 8}, "sequence_parallel", False),
        ({"framework": "fsdp2", "tensor_parallel_size": 8}, "expert_tensor_parallel_size", 1),
        ({"framework": "megatron-lm", "virtual_pipeline_size": 2}, "pipeline_schedule", "interleaved"),
        ({"framework": "fsdp2", "activation_checkpointing": "selective"}, "recompute_modules", []),
        ({"framework": "fsdp2", "activation_checkpointing": "full"}, "checkpointed_layers", 80),
        ({"framework": "fsdp2"}, "checkpointed_layers", 0),
        ({"framework": "fsdp2"}, "parameter_dtype", "fp32"),
        ({"framework": "fsdp2"}, "kernels", "partly-fused"),
        ({"framework": "fsdp1"}, "kernels", "partly-fused"),
        ({"framework": "ddp"}, "kernels", "eager"),
        ({"framework": "deepspeed"}, "kernels", "eager"),
        ({"framework": "nanotron"}, "kernels", "fused"),
        ({"framework": "fsdp2"}, "expandable_segments", True),
        ({"framework": "fsdp2", "precision": "fp8"}, "fp8_recipe", "tensorwise"),
        ({"framework": "deepspeed"}, "context_parallel_kind", "all-to-all"),
        ({"framework": "megatron-lm", "pipeline_parallel_size": 3}, "layers_per_stage", [27, 27, 26]),
        ({"framework": "megatron-lm", "pipeline_parallel_size": 200}, "layers_per_stage", []),
        # The head is worth 1.08 layers to nanotron: 81.08 in all, 20.27 a stage.
        ({"framework": "nanotron", "pipeline_parallel_size": 4}, "layers_per_stage", [21, 20, 20, 19]),
        (
            {"framework": "nanotron", "pipeline_parallel_size": 4, "layers_per_stage": [20, 20, 20, 20]},
            "layers_per_stage",
            [20, 20, 20, 20],
        ),
        ({"framework": "megatron-lm", "precision": "fp16"}, "gradient_dtype", "fp16"),
    ],
)
def test_defaults(strategy: dict[str, Any], field: str, value: Any) -> None:
    assert first(strategy)[field] == value


def test_says_whose_split_of_the_layers_was_assumed() -> None:
    def said(*frameworks: str) -> list[str]:
        strategies = [{"framework": framework, "pipeline_parallel_size": 4} for framework in frameworks]
        assumptions = resolve_strategies(PROBLEM, partial_columns(strategies)).assumptions
        return [line for line in assumptions if line.startswith("strategy.layers_per_stage")]

    assert [line[:60] for line in said("nanotron")] == ["strategy.layers_per_stage left out: nanotron's own split, wh"]
    assert [line[:60] for line in said("deepspeed")] == ["strategy.layers_per_stage left out: equal where it divides; "]
    assert len(said("deepspeed", "nanotron")) == 2


def test_all_layers_of_a_stage_are_those_of_all_its_chunks() -> None:
    strategy = {
        "framework": "megatron-lm",
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 2,
        "layers_per_stage": [10, 20, 20, 30],
        "activation_checkpointing": "full",
    }
    assert first(strategy)["checkpointed_layers"] == 50


class TestDtypes:
    @pytest.mark.parametrize(("method", "dtype"), [("lora", "bf16"), ("qlora", "nf4")])
    def test_frozen_weights(self, method: Any, dtype: str) -> None:
        assert first({"framework": "ddp"}, fine_tuning=FineTuning(method))["parameter_dtype"] == dtype

    def test_frozen_weights_follow_the_precision(self) -> None:
        row = first({"framework": "ddp"}, fine_tuning=FineTuning("lora"), precision="fp16")
        assert row["parameter_dtype"] == "fp16"

    def test_8_bit_states(self) -> None:
        assert first({"framework": "fsdp2"}, optimizer="adamw-8bit")["optimizer_state_dtype"] == "int8"

    def test_precision_of_the_workload(self) -> None:
        assert first({"framework": "fsdp2"}, precision="fp8")["precision"] == "fp8"


class TestAssumptions:
    def test_one_sentence_for_each_field_that_was_left_out(self) -> None:
        assumptions = resolve_strategies(PROBLEM, partial_columns([{"framework": "fsdp2"}])).assumptions
        assert "strategy.zero_stage left out: 3 (fsdp2)" in assumptions
        assert "strategy.micro_batch_size left out: 1" in assumptions
        assert "strategy.precision left out: bf16, as the workload has it" in assumptions
        assert len(assumptions) == len(set(assumptions))

    def test_values_are_grouped_and_not_repeated_by_row(self) -> None:
        partial = partial_columns([{"framework": name} for name in ("ddp", "fsdp1", "fsdp2", "ddp")])
        sentences = [s for s in resolve_strategies(PROBLEM, partial).assumptions if "zero_stage" in s]
        assert sentences == [
            "strategy.zero_stage left out: 0 (ddp)",
            "strategy.zero_stage left out: 3 (fsdp2; fsdp1)",
        ]

    def test_a_field_that_is_given_everywhere_is_not_mentioned(self) -> None:
        given_everywhere = [{"framework": "fsdp2", "micro_batch_size": 2, "zero_stage": 2, "offload_fraction": 0.5}]
        assumptions = resolve_strategies(PROBLEM, partial_columns(given_everywhere)).assumptions
        for name in ("micro_batch_size", "zero_stage", "offload_fraction"):
            assert not any(f"strategy.{name} " in sentence for sentence in assumptions)

    def test_a_resolved_strategy_leaves_nothing_to_assume(self) -> None:
        row = resolved(PROBLEM, {"framework": "megatron-lm", "precision": "fp8"}).row(0)
        assert resolve_strategies(PROBLEM, partial_columns([row])).assumptions == ()


def same(left: StrategyTable, right: StrategyTable) -> bool:
    return [left.row(i) for i in range(len(left))] == [right.row(i) for i in range(len(right))]


@given(st.lists(STRATEGIES, min_size=1, max_size=6))
def test_resolving_twice_changes_nothing(strategies: list[dict[str, Any]]) -> None:
    once = resolved(PROBLEM, *strategies)
    assert same(resolved(PROBLEM, *(once.row(index) for index in range(len(once)))), once)


@given(st.lists(STRATEGIES, min_size=1, max_size=6))
def test_a_table_is_resolved_as_its_rows_are(strategies: list[dict[str, Any]]) -> None:
    together = resolved(PROBLEM, *strategies)
    for index, strategy in enumerate(strategies):
        assert together.row(index) == resolved(PROBLEM, strategy).row(0)


@given(STRATEGIES)
def test_what_is_given_stays(strategy: dict[str, Any]) -> None:
    row = resolved(PROBLEM, strategy).row(0)
    for name, value in strategy.items():
        assert row[name] == (sorted(value) if name == "recompute_modules" else value)


def test_no_rows() -> None:
    result = resolve_strategies(PROBLEM, PartialColumns({"framework": np.array([], dtype=np.int64)}))
    assert len(result.table) == 0
    assert set(COLUMNS) <= set(vars(result.table))
    assert result.assumptions == ()


def test_sizes_beyond_any_cluster_stay_inside_64_bits() -> None:
    huge = 2**62
    row = first({"framework": "ddp", "tensor_parallel_size": huge, "pipeline_parallel_size": huge})
    assert row["data_parallel_size"] == 1
    assert row["tensor_parallel_size"] == huge
