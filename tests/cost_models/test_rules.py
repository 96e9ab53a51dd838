"""Rules: what did run is valid, and each code has a strategy that breaks it, with the numbers in its message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.codes import VIOLATIONS, decode
from cost_models.problem import Problem
from cost_models.rules import explain_violations, violations
from cost_models.strategy import FRAMEWORKS
from tests.cost_models.problems import h100, make_problem, megatron, resolved
from tests.cost_models.rule_cases import BREAKING, LLAMA, MIXTRAL, RECIPES


def broken(problem: Problem, strategy: dict[str, Any]) -> list[tuple[str, str]]:
    table = resolved(problem, strategy)
    return explain_violations(problem, table, 0, int(violations(problem, table)[0]))


@pytest.mark.parametrize("name", RECIPES)
def test_what_did_run_is_valid(name: str) -> None:
    assert broken(*RECIPES[name]) == []


@pytest.mark.parametrize(("problem", "strategy", "code", "message"), BREAKING)
def test_a_broken_rule_says_its_numbers(problem: Problem, strategy: dict[str, Any], code: str, message: str) -> None:
    assert (code, message) in broken(problem, strategy)


def test_every_code_has_an_example() -> None:
    # Mixed GPUs cannot be described to the rules: the reader of clusters refuses them.
    assert {code for _, _, code, _ in BREAKING} == set(VIOLATIONS) - {"mixed_gpus_unsupported"}


def test_every_broken_rule_is_reported() -> None:
    strategy = {"framework": "ddp", "tensor_parallel_size": 6, "zero_stage": 3, "micro_batch_size": 3}
    assert [code for code, _ in broken(LLAMA, strategy)] == [
        "degrees_do_not_multiply_to_gpus",
        "batch_not_divisible",
        "heads_not_divisible",
        "kv_heads_not_divisible",
        "ffn_not_divisible",
        "zero_stage_unsupported",
        "tensor_unsupported",
    ]


def test_empty_chunks_may_be_asked_for() -> None:
    problem = make_problem("llama-3-8b", h100(8))
    assert broken(problem, megatron(1, 4, layers_per_stage=[0, 16, 16, 0])) == []


def test_latent_attention_has_no_key_value_heads_to_divide() -> None:
    problem = make_problem("deepseek-v3", h100(96), global_batch_size=768)
    codes = [code for code, _ in broken(problem, megatron(3, 1))]
    assert "heads_not_divisible" in codes
    assert "kv_heads_not_divisible" not in codes


def test_an_unknown_host_is_no_violation() -> None:
    problem = make_problem("llama-3-70b", {"nodes": 8, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"})
    assert problem.cluster.host is None
    assert broken(problem, {"framework": "deepspeed", "zero_stage": 3, "offload": "nvme"}) == []


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 64])
STRATEGIES = st.fixed_dictionaries(
    {"framework": st.sampled_from(FRAMEWORKS)},
    optional={
        "data_parallel_size": SIZES,
        "tensor_parallel_size": SIZES,
        "pipeline_parallel_size": SIZES,
        "context_parallel_size": SIZES,
        "expert_parallel_size": SIZES,
        "expert_tensor_parallel_size": SIZES,
        "data_parallel_replicate_size": SIZES,
        "secondary_shard_size": SIZES,
        "virtual_pipeline_size": st.integers(1, 4),
        "micro_batch_size": SIZES,
        "zero_stage": st.integers(0, 3),
        "sequence_parallel": st.booleans(),
        "context_parallel_kind": st.sampled_from(["ring", "all-gather", "all-to-all"]),
        "pipeline_schedule": st.sampled_from(["1f1b", "interleaved", "gpipe", "zero-bubble"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "recompute_modules": st.lists(st.sampled_from(["core_attn", "mla_up_proj", "moe_act", "moe"]), unique=True),
        "offload": st.sampled_from(["none", "optimizer", "optimizer-and-parameters", "nvme", "activations"]),
        "precision": st.sampled_from(["bf16", "fp16", "fp8", "fp32"]),
        "fp8_recipe": st.sampled_from(["tensorwise", "rowwise", "blockwise", "mxfp8"]),
        "parameter_dtype": st.sampled_from(["fp32", "bf16", "fp8", "nf4"]),
        "layers_per_stage": st.sampled_from([[32], [16, 16], [1, 31], [40, 40]]),
    },
)


@given(st.lists(STRATEGIES, min_size=1, max_size=8), st.sampled_from([LLAMA, MIXTRAL]))
def test_a_table_is_checked_as_its_rows_are(strategies: list[dict[str, Any]], problem: Problem) -> None:
    masks = violations(problem, resolved(problem, *strategies))
    alone = [violations(problem, resolved(problem, strategy))[0] for strategy in strategies]
    assert masks.tolist() == alone


@given(STRATEGIES, st.sampled_from([LLAMA, MIXTRAL]))
def test_every_code_that_is_set_is_explained(strategy: dict[str, Any], problem: Problem) -> None:
    table = resolved(problem, strategy)
    mask = int(violations(problem, table)[0])
    said = explain_violations(problem, table, 0, mask)
    assert list(dict.fromkeys(code for code, _ in said)) == decode(VIOLATIONS, mask)


@given(STRATEGIES)
def test_degrees_that_do_not_multiply_to_the_gpus_are_never_missed(strategy: dict[str, Any]) -> None:
    table = resolved(LLAMA, strategy)
    sizes = (getattr(table, f"{kind}_parallel_size")[0] for kind in ("tensor", "context", "data", "pipeline"))
    multiplies = int(np.prod(list(sizes))) == 64
    codes = decode(VIOLATIONS, int(violations(LLAMA, table)[0]))
    assert ("degrees_do_not_multiply_to_gpus" in codes) is not multiplies


def test_sizes_beyond_any_cluster_are_refused_and_not_multiplied_into_the_right_number() -> None:
    huge = {f"{kind}_parallel_size": 2**32 for kind in ("tensor", "context", "data", "pipeline")}
    codes = [code for code, _ in broken(LLAMA, {"framework": "megatron-lm", **huge})]
    assert codes[0] == "degrees_do_not_multiply_to_gpus"
