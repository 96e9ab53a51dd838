"""The edge of what fits against brute force over every count of layers and every share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.candidates import Candidates
from search.evaluator import Evaluator
from search.fitting import FRACTIONS, fit_finely, least
from tests.search.problems import cluster, small_search

SEARCH = small_search("llama-3-70b", clusters=(cluster("dgx-a100", nodes=2),), frameworks=("megatron-lm", "deepspeed"))
LAYERS = 80


def fitted(strategy: Mapping[str, Any], search: Any = SEARCH, limit: float | None = None) -> Candidates:
    evaluator = Evaluator(search)
    table = evaluator.resolve_strategies(0, [strategy])
    return fit_finely(evaluator, 0, table, None if limit is None else np.array([limit]))


def every(strategy: Mapping[str, Any], layers: int, fractions: tuple[float, ...]) -> Candidates:
    return Evaluator(SEARCH).evaluate_strategies(
        0,
        [
            {**strategy, "checkpointed_layers": count, "offload_fraction": fraction}
            for count in range(1, layers + 1)
            for fraction in fractions
        ],
    )


@settings(max_examples=15, deadline=None)
@given(
    micro=st.sampled_from([1, 2]),
    framework_and_sizes=st.sampled_from(
        [
            ("megatron-lm", {"tensor_parallel_size": 8, "zero_stage": 1}),
            ("megatron-lm", {"tensor_parallel_size": 4, "pipeline_parallel_size": 4, "zero_stage": 1}),
            ("megatron-lm", {"tensor_parallel_size": 4, "zero_stage": 1}),
            ("deepspeed", {"zero_stage": 3}),
        ]
    ),
    offload=st.sampled_from(["none", "optimizer"]),
)
def test_the_best_count_and_share_of_all(
    micro: int, framework_and_sizes: tuple[str, dict[str, int]], offload: str
) -> None:
    framework, sizes = framework_and_sizes
    strategy = {
        "framework": framework,
        **sizes,
        "micro_batch_size": micro,
        "activation_checkpointing": "full",
        "offload": offload,
    }
    found = fitted(strategy)
    layers = int(Evaluator(SEARCH).resolve_strategies(0, [strategy]).checkpointed_layers[0])
    brute = every(strategy, layers, (1.0,) if offload == "none" else FRACTIONS)
    plans = brute.objective[brute.acceptable]
    assert found.acceptable[0] == bool(len(plans))
    if len(plans):
        assert found.objective[0] == plans.min()
    else:
        assert found.table.checkpointed_layers[0] == layers
        assert found.table.offload_fraction[0] == 1.0


def test_some_of_these_need_a_part_only() -> None:
    found = fitted({"framework": "megatron-lm", "tensor_parallel_size": 8, "zero_stage": 1, "offload": "optimizer"})
    assert found.acceptable[0]
    assert 0.05 <= found.table.offload_fraction[0] < 1.0


def test_each_row_by_itself_in_order() -> None:
    strategies = [
        {"framework": "deepspeed", "zero_stage": stage, "activation_checkpointing": mode, "micro_batch_size": micro}
        for stage in (0, 3)
        for mode in ("none", "full")
        for micro in (1, 2, 64)
    ]
    evaluator = Evaluator(SEARCH)
    together = fit_finely(evaluator, 0, evaluator.resolve_strategies(0, strategies))
    assert len(together) == len(strategies)
    for row, strategy in enumerate(strategies):
        alone = fitted(strategy)
        assert together.table.row(row) == alone.table.row(0)
        np.testing.assert_equal(together.objective[row], alone.objective[0])
    # 16 GPUs and micro-batches of 64 do not divide a batch of 32
    assert together.valid.tolist() == [True, True, False] * 4


def test_a_strategy_without_layers_to_checkpoint_is_kept() -> None:
    strategy = {"framework": "megatron-lm", "pipeline_parallel_size": 2, "activation_checkpointing": "full"}
    found = fitted({**strategy, "checkpointed_layers": 0})
    assert len(found) == 1


def test_no_strategies() -> None:
    evaluator = Evaluator(SEARCH)
    assert len(fit_finely(evaluator, 0, evaluator.resolve_strategies(0, []))) == 0


PARTLY = small_search("llama-3-70b", clusters=(cluster("dgx-a100", nodes=4),), frameworks=("deepspeed",))
SHARDED = {"framework": "deepspeed", "zero_stage": 3, "activation_checkpointing": "full"}


@pytest.mark.parametrize(("named", "expected"), [((10, 75), 75), ((80, 20), 80)])
def test_counts_that_space_names_are_kept_to(named: tuple[int, ...], expected: int) -> None:
    assert 20 < fitted(SHARDED, PARTLY).table.checkpointed_layers[0] < 75
    found = fitted(SHARDED, replace(PARTLY, space={"checkpointed_layers": named}))
    assert found.acceptable[0]
    assert found.table.checkpointed_layers[0] == expected


def test_a_limit_on_the_peak_takes_more_recomputation() -> None:
    free = fitted(SHARDED, PARTLY)
    limit = 0.95 * float(free.peak_bytes[0])
    bound = fitted(SHARDED, PARTLY, limit)
    assert bound.peak_bytes[0] <= limit
    assert bound.table.checkpointed_layers[0] > free.table.checkpointed_layers[0]


@pytest.mark.parametrize(
    ("framework", "offload", "layers", "fraction"),
    [
        ("megatron-lm", "optimizer", 1, FRACTIONS[0]),
        ("fsdp1", "optimizer-and-parameters", 1, 1.0),
        ("nanotron", "none", LAYERS, 1.0),
    ],
)
def test_the_least_of_what_a_framework_does_in_whole_is_the_whole(
    framework: str, offload: str, layers: int, fraction: float
) -> None:
    strategy = {
        "framework": framework,
        "zero_stage": 3 if framework == "fsdp1" else 1,
        "activation_checkpointing": "full",
        "offload": offload,
    }
    evaluator = Evaluator(SEARCH)
    found = least(evaluator.resolve_strategies(0, [strategy]))
    assert (found.checkpointed_layers[0], found.offload_fraction[0]) == (layers, fraction)
    assert not evaluator.evaluate(0, found).violations[0]
