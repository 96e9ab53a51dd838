from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.cluster import Cluster
from cost_models.workload import Workload
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.result import SearchResult
from tests.search.problems import NARROW, cluster, run, small_search

TWO_NODES = small_search(
    clusters=(cluster(nodes=2),), space=NARROW, workload=Workload(sequence_length=4096, global_batch_size=96), trials=16
)
EXPERTS = small_search(
    "qwen3-30b-a3b",
    clusters=(cluster(nodes=2),),
    workload=Workload(sequence_length=4096, global_batch_size=64),
    frameworks=("megatron-lm",),
    trials=0,
)


@pytest.fixture(scope="module")
def two_nodes() -> SearchResult:
    return run(TWO_NODES)


@pytest.fixture(scope="module")
def experts() -> SearchResult:
    return run(EXPERTS)


def changes(result: SearchResult) -> dict[tuple[str, float], Mapping[str, Any]]:
    return {(change["name"], change["value"]): change for change in result.plans[0]["sensitivity"]}


def on(search: SearchProblem, changed: Cluster) -> Evaluator:
    return Evaluator(replace(search, clusters=(changed,)))


def fabric(factor: float) -> Cluster:
    own = cluster(nodes=2)
    return replace(own, inter_node=replace(own.inter_node, bytes_per_s=own.inter_node.bytes_per_s * factor))


def nvlink(factor: float) -> Cluster:
    own = cluster(nodes=2)
    return replace(own, intra_node=replace(own.intra_node, bytes_per_s=own.intra_node.bytes_per_s * factor))


def test_only_the_first_plan_has_a_sensitivity(two_nodes: SearchResult) -> None:
    assert set(changes(two_nodes)) == {
        ("inter_node_bandwidth", 2.0),
        ("inter_node_bandwidth", 0.5),
        ("intra_node_bandwidth", 2.0),
        ("gpu_memory", 1.25),
        ("nodes", 3.0),
    }
    assert all(plan["sensitivity"] == [] for plan in two_nodes.plans[1:])


@pytest.mark.parametrize(
    ("name", "factor", "changed"),
    [
        ("inter_node_bandwidth", 2.0, fabric(2.0)),
        ("inter_node_bandwidth", 0.5, fabric(0.5)),
        ("intra_node_bandwidth", 2.0, nvlink(2.0)),
    ],
)
def test_other_links_are_priced_as_clusters_that_have_them(
    two_nodes: SearchResult, name: str, factor: float, changed: Cluster
) -> None:
    change = changes(two_nodes)[name, factor]
    strategies = [plan["strategy"] for plan in two_nodes.plans]
    seconds = on(TWO_NODES, changed).evaluate_strategies(0, strategies).step_seconds
    assert change["step_seconds"] == pytest.approx(seconds[0], rel=1e-9)
    assert change["relative"] == pytest.approx(seconds[0] / two_nodes.plans[0]["time"]["step_seconds"] - 1, abs=1e-8)
    assert change["best"]["step_seconds"] <= seconds.min() * (1 + 1e-4)
    again = on(TWO_NODES, changed).evaluate_strategies(0, [change["best"]["strategy"]])
    assert again.fits[0]
    assert again.step_seconds[0] == pytest.approx(change["best"]["step_seconds"], rel=1e-9)
    assert change["stays_first"] == (change["best"]["rank"] == 1)


def test_a_faster_fabric_never_makes_a_plan_slower(two_nodes: SearchResult) -> None:
    found = changes(two_nodes)
    assert found["inter_node_bandwidth", 2.0]["relative"] <= 0 <= found["inter_node_bandwidth", 0.5]["relative"]


def test_more_memory_is_used_where_it_helps() -> None:
    search = small_search("llama-3-70b", clusters=(cluster(nodes=4),), trials=32)
    result = run(search)
    change = changes(result)["gpu_memory", 1.25]
    own = cluster(nodes=4)
    larger = on(search, replace(own, gpu=replace(own.gpu, memory_bytes=1.25 * own.gpu.memory_bytes)))
    best = change["best"]
    again = larger.evaluate_strategies(0, [best["strategy"]])
    assert again.fits[0]
    assert again.step_seconds[0] == pytest.approx(best["step_seconds"], rel=1e-9)
    today = Evaluator(search).evaluate_strategies(0, [best["strategy"]])
    assert bool(today.fits[0]) is (best["rank"] is not None)
    assert best["relative"] < -0.01
    assert change["step_seconds"] == pytest.approx(result.plans[0]["time"]["step_seconds"])


def test_the_next_number_of_nodes_keeps_the_global_batch(two_nodes: SearchResult) -> None:
    change = changes(two_nodes)["nodes", 3.0]
    strategy = {**change["best"]["strategy"]}
    grown = on(TWO_NODES, cluster(nodes=3)).evaluate_strategies(0, [strategy])
    assert grown.fits[0]
    assert grown.step_seconds[0] == pytest.approx(change["best"]["step_seconds"], rel=1e-9)
    assert 96 % (strategy["data_parallel_size"] * strategy["micro_batch_size"]) == 0


def test_where_the_batch_does_not_divide_the_next_size_that_does_is_priced() -> None:
    result = run(replace(TWO_NODES, workload=Workload(sequence_length=4096, global_batch_size=64)))
    assert [value for name, value in changes(result) if name == "nodes"] == [4.0]
    assert any(s.startswith("With 2 more nodes (32 GPUs): ") for s in result.plans[0]["explanation"])


def test_without_a_network_nothing_is_said_of_it() -> None:
    result = run(small_search(space=NARROW, trials=0))
    assert not [name for name, _ in changes(result) if name == "inter_node_bandwidth"]


def test_the_load_of_the_hottest_expert_is_varied(experts: SearchResult) -> None:
    change = changes(experts)["expert_imbalance", 1.5]
    uneven = Evaluator(replace(EXPERTS, workload=replace(EXPERTS.workload, expert_imbalance=1.5)))
    scored = uneven.evaluate_strategies(0, [plan["strategy"] for plan in experts.plans])
    assert change["step_seconds"] == (pytest.approx(scored.step_seconds[0], rel=1e-9) if scored.fits[0] else None)
    fastest = np.min(scored.step_seconds[scored.fits], initial=np.inf)
    assert change["best"]["step_seconds"] <= fastest * (1 + 1e-4)


def test_the_sentences_say_what_the_figures_say(two_nodes: SearchResult) -> None:
    sentences = [s for s in two_nodes.plans[0]["explanation"] if s.startswith(("With ", "Neither "))]
    for change in changes(two_nodes).values():
        [said] = [sentence for sentence in sentences if change["change"] in sentence]
        if said.startswith("Neither "):
            assert change["stays_first"]
            assert abs(change["relative"]) < 5e-4
        else:
            assert said.startswith(f"With {change['change']}: {change['step_seconds']:.3g} s")
            assert ("the order stands" in said) == change["stays_first"]
