"""The cases of the regret benchmark are requests that the service takes, and its figures are right on a toy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from app.schemas.searches import SearchRequest
from app.services.problems import search_problem
from benchmarks.fine_space import best_of_fine_space
from benchmarks.regret import (
    EXACT,
    SAMPLERS,
    Outcome,
    Sampled,
    Scored,
    first_plan,
    gain,
    regret,
    sampled,
    score_lattice,
    summary,
)
from benchmarks.search_cases import CASES
from cost_models.frameworks import framework_named
from cost_models.workload import Workload
from search.evaluator import Evaluator
from search.fitting import fit_finely
from search.lattice import build_lattice
from search.optuna_engine import proposed
from search.problem import SearchProblem
from search.study_space import KNOB_FREE_FIELDS, StudySpace, study_layouts
from tests.search.problems import NARROW, cluster, small_search


@pytest.mark.parametrize("name", CASES)
def test_cases_are_requests(name: str) -> None:
    request = SearchRequest.model_validate(CASES[name].request(trials=128, seed=3))
    search = search_problem(request).problem
    assert (search.trials, search.seed, search.objective, search.corrections) == (128, 3, "step_time", None)
    assert search.workload.global_batch_size >= 1


def test_cases_are_as_varied_as_they_say() -> None:
    searches = [case.search() for case in CASES.values()]
    gpus = {search.clusters[0].gpus for search in searches}
    assert len(searches) >= 30
    assert (min(gpus), max(gpus)) == (1, 16_384)
    names = {search.clusters[0].gpu.name for search in searches}
    assert {"v100-sxm2-16gb", "gb200-186gb", "mi300x-192gb", "rtx-4090-24gb"} <= names
    assert {search.workload.fine_tuning.method for search in searches if search.workload.fine_tuning} == {
        "lora",
        "qlora",
    }
    assert max(search.workload.sequence_length for search in searches) == 131_072
    assert any(block.experts for search in searches for block in search.model.blocks)


def toy(**changes: Any) -> SearchProblem:
    return small_search("llama-3-8b", space={**NARROW, "zero_stage": (1, 3)}, trials=0, **changes)


def best_by_hand(search: SearchProblem) -> float:
    """Every combination of `space`, without the code that lays out a lattice."""
    strategies = [
        {"framework": framework, **dict(zip(search.space, values, strict=True))}
        for framework in search.frameworks or ()
        for values in itertools.product(*search.space.values())
    ]
    found = Evaluator(search).evaluate_strategies(0, strategies)
    return float(found.objective[found.acceptable].min())


def test_the_best_of_a_lattice_is_the_best_of_all_combinations() -> None:
    search = toy()
    lattice = score_lattice(search)
    assert lattice.points > 100
    assert lattice.best == pytest.approx(best_by_hand(search), rel=1e-12)
    assert regret(lattice.best, first_plan(search)) == 0.0


def test_a_search_of_half_the_space_regrets_the_other_half() -> None:
    """What it misses is counted in full: the first plan of the worse half over the best of both."""
    search = toy()
    halves = [
        replace(search, space={**search.space, "activation_checkpointing": (mode,)}) for mode in ("none", "selective")
    ]
    none, selective = (best_by_hand(half) for half in halves)
    assert none < selective
    assert first_plan(halves[1]) == pytest.approx(selective, rel=EXACT)
    both = replace(search, space={**search.space, "activation_checkpointing": ("none", "selective")})
    assert regret(score_lattice(both).best, first_plan(halves[1])) == pytest.approx(selective / none - 1.0, rel=1e-6)


def test_nothing_fits_is_no_regret_and_a_missed_plan_is_infinite() -> None:
    nothing = CASES["llama-3-70b, 1 RTX 4090"].search()
    assert math.isinf(score_lattice(nothing).best)
    assert first_plan(replace(nothing, trials=0)) == math.inf
    assert regret(math.inf, math.inf) == 0.0
    assert regret(2.0, math.inf) == math.inf
    assert regret(2.0, 2.0 * (1 + 1e-12)) == 0.0
    assert regret(2.0, 2.5) == 0.25


def test_gain_is_a_share_of_the_step() -> None:
    assert gain(2.0, 1.5) == 0.25
    assert gain(2.0, 2.5) == -0.25
    assert gain(math.inf, math.inf) == 0.0
    assert gain(math.inf, 3.0) == 1.0
    assert gain(2.0, math.inf) == -math.inf


def test_summary_counts_regret_and_gains() -> None:
    first, second = list(CASES)[:2]
    outcomes = {
        first: Outcome(Scored(10, 2.0), 2.0, (1.9, 1.9, 2.0), 1.6, Sampled(1.99, {"TPE": (2.0, 2.0, 2.0)})),
        second: Outcome(Scored(10, 2.0), 2.2, (1.9, 1.9, 1.9), 1.9, Sampled(1.9, {"TPE": (1.8, 1.9, 1.9)})),
    }
    lines = list(summary(outcomes))
    assert lines[0] == f"regret other than 0: 1 of 2 cases: {second}"
    assert lines[1] == "fine space, worst seed: regret 25.00% at most, 0 in 1, above 0.5% in 1"
    assert "all: >= 1% in 2 of 2; nothing in 0" in lines
    # The second case's gain is that of its first points: no merit of the sampler.
    assert "beyond the points that it tries first the study saves >= 1% in 1" in lines
    assert any(
        line.startswith("TPE, of 2") and "behind the study in 1 (1 by more than 1%), ahead in 0" in line
        for line in lines
    )


def test_samplers_find_plans_and_the_first_points_are_plans_of_the_lattice_at_least() -> None:
    search = replace(small_search("llama-3-8b", space=NARROW), trials=32)
    found = sampled(search, {"random": SAMPLERS["random"]}, (0, 1))
    assert set(found.best) == {"random", "random in the place of TPE"}
    best = best_by_hand(search)
    assert found.at_first == pytest.approx(best, rel=1e-12)
    assert all(one == pytest.approx(best, rel=1e-12) for one in found.best["random in the place of TPE"])
    assert all(one >= best * (1 - EXACT) for one in found.best["random"])


SELECTIVE = {
    "tensor_parallel_size": (1, 2),
    "pipeline_parallel_size": (2, 4),
    "virtual_pipeline_size": (1,),
    "context_parallel_size": (1,),
    "zero_stage": (1,),
    "micro_batch_size": (1, 2),
    "activation_checkpointing": ("none", "selective", "full"),
    "offload": ("none",),
}


@pytest.mark.parametrize(
    "space",
    [SELECTIVE, {**SELECTIVE, "activation_checkpointing": ("full",), "offload": ("none", "optimizer")}],
    ids=["modules", "layers and offload"],
)
def test_the_best_of_the_fine_space_is_the_best_of_all_its_points(space: dict[str, Any]) -> None:
    """The bound leaves nothing out: every point is fitted."""
    search = small_search(
        "llama-2-13b",
        clusters=(cluster("p4d"),),
        frameworks=("megatron-lm",),
        space=space,
        workload=Workload(sequence_length=4096, global_batch_size=16),
        trials=128,
    )
    evaluator = Evaluator(search)
    lattice = build_lattice(search, search.clusters[0], framework_named("megatron-lm"))
    rows = evaluator.evaluate(0, evaluator.resolve(0, lattice.leanest(lattice.with_micro_batches(lattice.layouts))))
    rows = rows.take(rows.valid)
    points = StudySpace(search, study_layouts(search, rows.take(rows.first_of_each(KNOB_FREE_FIELDS))))
    names, ranges = list(points.distributions), [_values(one) for one in points.distributions.values()]
    decoded = [points.decode(dict(zip(names, values, strict=True))) for values in itertools.product(*ranges)]
    fitted = fit_finely(evaluator, 0, proposed(evaluator, 0, decoded))
    best = float(fitted.objective[fitted.acceptable].min())
    assert len(decoded) > 1000
    assert best_of_fine_space(search, ("megatron-lm",), math.inf) == pytest.approx(best, rel=1e-12)
    assert best * (1 - EXACT) <= first_plan(search) <= best * 1.005


def _values(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution)
    return list(range(distribution.low, distribution.high + 1))


def test_only_step_times_are_compared() -> None:
    with pytest.raises(ValueError, match="step seconds"):
        first_plan(replace(toy(), objective="energy"))
