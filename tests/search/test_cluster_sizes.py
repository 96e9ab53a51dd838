"""Several cluster sizes: the smallest, the fastest and the cheapest against a search of each size alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cost_models.workload import Workload
from search import SearchProblem, SearchResult, run_search
from search import sweep as sweep_module
from search.evaluator import Evaluator
from search.problem import Objective
from search.watch import Watch
from tests.search.problems import NARROW, Recorder, cluster, run, small_search

TOKENS = 1e12
SIZES = (4, 1, 3, 2)


def sizes_search(model: str = "llama-3-8b", **changes: Any) -> SearchProblem:
    fields: dict[str, Any] = {
        "clusters": tuple(cluster("dgx-h100", nodes, usd_per_gpu_hour=2.5) for nodes in SIZES),
        "workload": Workload(4096, 96, training_tokens=TOKENS),
        "space": {**NARROW, "pipeline_parallel_size": (1, 2, 3)},
        "trials": 0,
        "plans": 10,
    }
    return small_search(model, **{**fields, **changes})


@cache
def alone() -> dict[int, SearchResult]:
    """The same search of each size alone, without a deadline."""
    search = sizes_search()
    return {one.nodes: run(replace(search, clusters=(one,))) for one in search.clusters}


@pytest.mark.parametrize("deadline", [None, 100.0, 50.0, 40.0])
@pytest.mark.parametrize("objective", ["step_time", "cost", "energy", "pareto"])
def test_names_the_sizes_that_separate_searches_name(objective: Objective, deadline: float | None) -> None:
    result = run(sizes_search(objective=objective, deadline_days=deadline))
    costs = {nodes: one.plans[0]["cost"] for nodes, one in alone().items()}
    usable = {nodes: cost for nodes, cost in costs.items() if cost["days"] <= (deadline or math.inf)}
    assert result.sizes.smallest == min(usable)
    assert result.sizes.fastest == min(usable, key=lambda nodes: usable[nodes]["days"])
    assert result.sizes.cheapest == min(usable, key=lambda nodes: usable[nodes]["usd"])
    assert [size.nodes for size in result.sizes.sizes] == sorted(SIZES)
    for size in result.sizes.sizes:
        cost = costs[size.nodes]
        assert size.meets_deadline is (None if deadline is None else size.nodes in usable)
        assert size.strategy == alone()[size.nodes].plans[0]["strategy"]
        assert (size.days, size.usd, size.energy_kwh) == tuple(cost[name] for name in ("days", "usd", "energy_kwh"))
    json.dumps(result.as_dict(), allow_nan=False)


def test_deadlines_of_the_tests_part_the_sizes() -> None:
    days = {nodes: one.plans[0]["cost"]["days"] for nodes, one in alone().items()}
    assert days[1] > 100
    assert 50 < days[2] < 100
    assert 40 < days[3] < 50
    assert days[4] < 40


def test_a_size_that_is_late_says_what_it_takes() -> None:
    result = run(sizes_search(deadline_days=50.0))
    late = [size for size in result.sizes.sizes if not size.meets_deadline]
    assert late
    for size in late:
        assert size.fits
        assert size.rank is None
        assert size.days is not None
        assert size.days > 50
        assert size.days == alone()[size.nodes].plans[0]["cost"]["days"]
        assert f"{size.days:.1f} days are {size.days - 50:.1f} more than the deadline" in size.notes[0]
        assert f"{size.nodes} node" in result.verdict


@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_what_misses_the_deadline_by_least_comes_first(objective: Objective) -> None:
    search = sizes_search(objective=objective, deadline_days=50.0)
    watch = Watch(lambda: 0.0, lambda: False, 0.0, math.inf)
    late = sweep_module.sweep(Evaluator(search), search.frameworks or (), watch, lambda _: None).late
    assert (np.diff(late.step_seconds) >= 0).all()
    # Of 4, 1, 3 and 2 nodes the first and the third are in time at their best.
    assert len(set(late.cluster.tolist())) > 1


def test_no_size_in_time_lists_them_all() -> None:
    recorder = Recorder()
    search = sizes_search(deadline_days=1.0, seconds=1.0)

    def clock() -> float:
        # No time is left to try what would help.
        return float(any(progress.phase == "ranking" for progress in recorder.progress))

    result = run_search(search, report=recorder, cancelled=lambda: False, clock=clock)
    assert (result.sizes.smallest, result.sizes.fastest, result.sizes.cheapest) == (None, None, None)
    assert len(result.sizes.sizes) == len(SIZES)
    assert "None of the cluster sizes trains 1e+12 tokens in 1 days: 1 node: " in result.verdict


def test_the_verdict_names_size_days_and_dollars() -> None:
    result = run(sizes_search(deadline_days=100.0))
    smallest, fastest, cheapest = (
        result.sizes.of(nodes)
        for nodes in (result.sizes.smallest, result.sizes.fastest, result.sizes.cheapest)
        if nodes
    )
    assert (
        f"{smallest.nodes} nodes is the smallest size that trains 1e+12 tokens in 100 days ({smallest.days:.1f} days), "
        f"{fastest.nodes} the fastest ({fastest.days:.1f} days), {cheapest.nodes} the cheapest "
        f"({cheapest.usd:,.0f} USD)."
    ) in result.verdict


def test_without_a_price_the_cheapest_is_by_gpu_hours_and_says_so() -> None:
    priced = run(sizes_search())
    clusters = tuple(cluster("dgx-h100", nodes, usd_per_gpu_hour=None) for nodes in SIZES)
    unpriced = run(sizes_search(clusters=clusters))
    assert unpriced.sizes.cheapest == priced.sizes.cheapest
    cheapest = unpriced.sizes.of(unpriced.sizes.cheapest or 0)
    assert cheapest.usd is None
    assert f"the cheapest (by GPU-hours, {cheapest.gpu_hours:,.0f}, as the cluster has no price)" in unpriced.verdict


@pytest.mark.parametrize("plans", [1, 2, 3, 10])
@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_plans_hold_the_best_of_every_size_to_choose_from(objective: Objective, plans: int) -> None:
    result = run(sizes_search(objective=objective, plans=plans, deadline_days=100.0))
    assert len(result.plans) == plans
    price = {plan["rank"]: plan["cost"]["usd" if objective == "cost" else "days"] for plan in result.plans}
    assert all(price[rank] <= price[rank + 1] for rank, _ in pairwise(price))
    named = {result.sizes.smallest, result.sizes.fastest, result.sizes.cheapest}
    assert len(named) > 1
    if plans >= len(named):
        assert named <= {plan["nodes"] for plan in result.plans}
    assert price[1] == min(
        (size.usd if objective == "cost" else size.days) or math.inf for size in result.sizes.sizes if size.usable
    )
    for size in result.sizes.sizes:
        if size.rank is not None:
            plan = result.plans[size.rank - 1]
            assert (plan["nodes"], plan["strategy"]) == (size.nodes, size.strategy)


def test_a_size_on_which_nothing_fits_says_by_how_much() -> None:
    search = sizes_search("llama-3-70b", space={**NARROW, "pipeline_parallel_size": (1, 2)})
    result = run(search)
    one = result.sizes.of(1)
    assert (one.fits, one.strategy is None, one.days) == (False, False, None)
    assert one.required_upper_gib is not None
    assert one.required_upper_gib > one.capacity_gib
    missing = one.required_upper_gib - one.capacity_gib
    assert one.notes == (
        f"Nothing fits: the closest needs up to {one.required_upper_gib:.1f} of {one.capacity_gib:.1f} GiB of a GPU, "
        f"{missing:.1f} GiB too much.",
    )
    separate = {one.nodes: run(replace(search, clusters=(one,))).plans for one in search.clusters if one.nodes > 1}
    assert result.sizes.smallest == min(nodes for nodes, plans in separate.items() if plans)


def test_a_batch_that_a_size_does_not_divide_is_named() -> None:
    search = sizes_search(workload=Workload(4096, 64, training_tokens=TOKENS), space=NARROW)
    result = run(search)
    three = result.sizes.of(3)
    assert not three.fits
    assert three.notes == (
        "No strategy was scored: no combination of sizes multiplies to all GPUs and divides the global batch.",
        "global_batch_size 64 is not divisible by 3, a factor of the 24 GPUs (batch_not_divisible): no data-parallel "
        "size holds it, so that tensor, context or pipeline size must.",
    )
    assert all(not size.notes for size in result.sizes.sizes if size.nodes != 3)


def test_one_size_is_all_three() -> None:
    result = run(small_search(space=NARROW, trials=0))
    assert (result.sizes.smallest, result.sizes.fastest, result.sizes.cheapest) == (1, 1, 1)
    assert result.sizes.sizes[0].rank == 1
    assert "smallest" not in result.verdict


def test_a_stopped_search_has_looked_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    # The largest size comes first and has many blocks; the time ends long before it is through.
    monkeypatch.setattr(sweep_module, "BLOCK_ROWS", 4096)
    clusters = tuple(cluster("dgx-h100", nodes) for nodes in (128, 4, 8))
    search = sizes_search(
        clusters=clusters, workload=Workload(4096, 1024, training_tokens=TOKENS), space={}, frameworks=("megatron-lm",)
    )
    looks = [0]

    def clock() -> float:
        looks[0] += 1
        return float(looks[0])

    whole = run(search)
    result = run_search(replace(search, seconds=5.0), report=Recorder(), cancelled=lambda: False, clock=clock)
    assert result.stopped_by == "seconds"
    assert result.evaluated < whole.evaluated
    assert all(size.fits for size in result.sizes.sizes)
    stopped = [size.nodes for size in result.sizes.sizes if "The search was stopped (seconds)" in " ".join(size.notes)]
    assert 128 in stopped


def test_the_study_refines_the_sizes_too() -> None:
    search = sizes_search("llama-2-13b", space={"activation_checkpointing": ("full",), "offload": ("none",)}, trials=96)
    lattice = run(replace(search, trials=0))
    refined = run(search)
    for size in refined.sizes.sizes:
        assert size.step_seconds is not None
        assert size.step_seconds <= (lattice.sizes.of(size.nodes).step_seconds or 0.0)
    assert any(
        (size.step_seconds or 0.0) < (lattice.sizes.of(size.nodes).step_seconds or 0.0) for size in refined.sizes.sizes
    )
