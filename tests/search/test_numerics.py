from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.units import GIB
from search.evaluator import Evaluator
from search.result import SearchResult
from tests.search.problems import NARROW, cluster, run, small_search

BOUND = small_search("llama-3-70b", clusters=(cluster(nodes=4),), frameworks=("megatron-lm",), trials=32)


@pytest.fixture(scope="module")
def bound() -> SearchResult:
    return run(BOUND)


def test_what_memory_binds_is_told_what_other_numerics_would_free(bound: SearchResult) -> None:
    first = bound.plans[0]
    assert any(sentence.startswith("Memory binds") for sentence in first["explanation"])
    found = {entry["change"]: entry for entry in first["alternatives"] if entry["changes_numerics"]}
    assert {"gradients in bf16", "an 8-bit optimizer (adamw-8bit)"} <= found.keys()
    own = first["memory"]["required_upper_gib"]
    for words, entry in found.items():
        workload = BOUND.workload
        if "8-bit optimizer" in words:
            workload = replace(workload, optimizer="adamw-8bit")
        again = Evaluator(replace(BOUND, workload=workload)).evaluate_strategies(0, [entry["strategy"]])
        assert entry["step_seconds"] == pytest.approx(again.step_seconds[0])
        assert entry["required_upper_gib"] == pytest.approx(again.required_upper_bytes[0] / GIB)
        assert entry["fits"] == again.fits[0]
        if " and " not in words:
            assert entry["required_upper_gib"] < own
        else:
            assert entry["fits"]
            assert entry["relative"] < 0
        assert sum(words in sentence for sentence in first["explanation"] if sentence.startswith("Changing num")) >= 1


def test_other_plans_are_told_nothing_of_it(bound: SearchResult) -> None:
    assert not any(entry["changes_numerics"] for plan in bound.plans[1:] for entry in plan["alternatives"])


def test_where_memory_does_not_bind_numerics_are_left_alone() -> None:
    result = run(small_search("gpt-2-xl", clusters=(cluster(),), space={**NARROW, "micro_batch_size": (1,)}, trials=0))
    assert result.plans[0]["explanation"][2].startswith("Memory: ")
    assert not any(entry["changes_numerics"] for entry in result.plans[0]["alternatives"])
