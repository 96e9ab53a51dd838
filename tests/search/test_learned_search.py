"""The search with corrections against brute force: what was learned decides what fits, and nothing that matters is left
out, however unlike the formulas it is."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.answer import full_answers
from cost_models.corrections import Corrections
from cost_models.estimate import estimate
from cost_models.frameworks import FRAMEWORKS
from cost_models.resolve import resolve_strategies
from cost_models.stages import bounding_stages
from cost_models.strategy import partial_columns
from cost_models.units import GIB
from search.candidates import Candidates, join
from search.evaluator import Evaluator
from search.judgement import judge, judge_sparingly
from search.lattice import build_lattice
from search.problem import SearchProblem
from search.startable import startable
from search.sweep import sweep
from search.swept import SHORTLIST, Sweep
from search.watch import Watch
from tests.cost_models.corrections import JumpingCorrections, NoCorrections
from tests.search.problems import cluster, run, small_search

LATTICE = {
    "tensor_parallel_size": (1, 2, 4, 8),
    "context_parallel_size": (1, 2),
    "pipeline_parallel_size": (1, 2),
    "virtual_pipeline_size": (1,),
    "pipeline_schedule": ("1f1b",),
    "zero_stage": (1, 3),
    "micro_batch_size": (1, 2, 4),
    "offload": ("none", "optimizer"),
}
"""Few layouts; every checkpointing with its shares of a stage."""
TIMES = {"megatron-lm": 1.4, "fsdp2": 0.8}


def learned_search(corrections: Corrections, **changes: Any) -> SearchProblem:
    gpus = cluster("dgx-a100", gpu_free_memory_bytes=40 * 2**30)
    return small_search("llama-2-13b", clusters=(gpus,), space=LATTICE, corrections=corrections, **changes)


def swept(search: SearchProblem) -> Sweep:
    watch = Watch(lambda: 0.0, lambda: False, 0.0, math.inf)
    return sweep(Evaluator(search), search.frameworks or (), watch, lambda _: None)


def whole_lattice(search: SearchProblem) -> Candidates:
    """Every point, each scored on all of its stages with everything corrected."""
    evaluator = Evaluator(search)
    parts = []
    for framework in FRAMEWORKS:
        if framework.name not in (search.frameworks or ()):
            continue
        lattice = build_lattice(search, search.clusters[0], framework)
        rows = lattice.with_micro_batches(lattice.layouts)
        for offload in lattice.axes.offload:
            kept = {name: column[lattice.can_offload(rows, offload[0])] for name, column in rows.items()}
            crossed = lattice.with_checkpointing(kept, range(len(lattice.axes.checkpointing)))
            table = evaluator.resolve(0, lattice.with_offload(crossed, offload))
            parts.append(evaluator.evaluate(0, table.take(startable(search, 0, table))))
    return join(parts)


def keys(candidates: Candidates) -> dict[str, float]:
    return {str(candidates.table.row(row)): float(candidates.objective[row]) for row in range(len(candidates))}


JUMPS = {
    "either way": JumpingCorrections(0.6, 1.6, time_factors=TIMES),
    "leaner than the formulas": JumpingCorrections(0.3, 0.8, seed=3),
    "fatter than the formulas": JumpingCorrections(1.2, 3.0, seed=5, time_factors=TIMES),
}


@pytest.mark.parametrize("corrections", JUMPS.values(), ids=JUMPS.keys())
def test_every_point_of_the_lattice_that_fits_is_found(corrections: JumpingCorrections) -> None:
    search = learned_search(corrections, objective="pareto")
    points, found = whole_lattice(search), swept(search)
    plans = points.take(points.acceptable)
    formulas = whole_lattice(replace(search, corrections=None))
    assert 20 < len(plans) < SHORTLIST
    # The corrections matter: they let some in, or throw some out.
    assert (points.fits != formulas.fits).sum() > 50
    assert keys(found.best).keys() == keys(plans).keys()
    assert keys(found.best) == pytest.approx(keys(plans), rel=1e-12)
    assert set(keys(found.tight)) == set(keys(points.take(points.tight)))
    np.testing.assert_allclose(np.sort(found.best.peak_bytes), np.sort(plans.peak_bytes), rtol=1e-12)


def layout_keys(candidates: Candidates) -> list[str]:
    """What a strategy is besides its checkpointing and offload."""
    varied = ("activation_checkpointing", "checkpointed_layers", "recompute_modules", "offload", "offload_fraction")
    strategies = (candidates.table.row(row) for row in range(len(candidates)))
    return [str({name: value for name, value in one.items() if name not in varied}) for one in strategies]


@pytest.mark.parametrize("corrections", JUMPS.values(), ids=JUMPS.keys())
def test_what_a_search_for_speed_leaves_out_is_slower(corrections: JumpingCorrections) -> None:
    search = learned_search(corrections)
    points, found = whole_lattice(search), swept(search).best
    plans = points.take(points.acceptable)
    assert 10 < len(found) < len(plans)
    assert set(keys(found)) <= set(keys(plans))
    assert found.objective[0] == pytest.approx(plans.objective.min(), rel=1e-12)
    # The same layout and micro-batch is there with less offloaded or recomputed, and is as fast at least.
    fastest: dict[str, float] = {}
    for key, seconds in zip(layout_keys(found), found.objective.tolist(), strict=True):
        fastest[key] = min(seconds, fastest.get(key, math.inf))
    for key, seconds in zip(layout_keys(plans), plans.objective.tolist(), strict=True):
        assert fastest[key] <= seconds * (1 + 1e-9)


def test_time_factors_decide_between_frameworks() -> None:
    winners = {}
    for name, other in (("megatron-lm", "fsdp2"), ("fsdp2", "megatron-lm")):
        corrections = JumpingCorrections(1.0, 1.0, time_factors={name: 0.2, other: 2.0})
        best = swept(learned_search(corrections)).best
        assert len(np.unique(best.table.framework)) == 2
        winners[name] = best.table.row(0)["framework"]
    assert winners == {"megatron-lm": "megatron-lm", "fsdp2": "fsdp2"}


def test_a_version_that_learned_nothing_finds_the_same() -> None:
    plain = replace(learned_search(JumpingCorrections()), corrections=None)
    without, nothing = swept(plain), swept(replace(plain, corrections=NoCorrections()))
    assert keys(without.best) == keys(nothing.best)
    assert keys(without.tight) == keys(nothing.tight)


def test_only_what_hangs_on_it_is_asked_about() -> None:
    corrections = JumpingCorrections(0.9, 1.1)
    search = learned_search(corrections)
    evaluated = swept(search).evaluated
    assert 0 < sum(corrections.asked) < evaluated / 2


def test_the_result_is_that_of_the_corrected_models() -> None:
    corrections = JumpingCorrections(0.6, 1.6, version=31, time_factors=TIMES)
    current = {"framework": "fsdp2", "zero_stage": 3, "activation_checkpointing": "full"}
    search = learned_search(corrections, current=current)
    result = run(search)
    assert result.memory_model_version == 31
    assert len(result.plans) == 5
    assert result.plans == run(search).plans
    for plan in (*result.plans, *result.tight, *result.pareto, result.current or {}):
        table = resolve_strategies(search.problems[0], partial_columns([plan["strategy"]])).table
        estimates = estimate(
            search.problems[0], table, memory_confidence=search.memory_confidence, corrections=corrections
        )
        own = full_answers(estimates)[0]
        assert own == {name: plan[name] for name in own}
    assert all(plan["fits"] for plan in (*result.plans, *result.pareto))
    assert not any(plan["fits"] for plan in result.tight)
    assert all("version 31" in plan["provenance"]["notes"][-1] for plan in result.plans)
    seconds = [point["time"]["step_seconds"] for point in result.pareto]
    peaks = [point["memory"]["peak_gib"] for point in result.pareto]
    assert seconds == sorted(seconds)
    assert peaks == sorted(peaks, reverse=True)


def test_a_version_decides_that_nothing_fits_and_the_verdict_has_its_figures() -> None:
    search = learned_search(JumpingCorrections(6.0, 8.0), trials=0)
    result = run(search)
    assert result.plans == ()
    assert run(replace(search, corrections=None)).plans != ()
    points = whole_lattice(search)
    needed = points.needed_bytes[points.valid] / GIB
    [said] = re.findall(r"needs up to ([0-9.]+) of 40\.0 GiB", result.verdict)
    # Exactly what some point of the lattice needs, not the least that corrections could make of it.
    assert said in {f"{gib:.1f}" for gib in needed.tolist()}
    assert float(said) > needed.min() - 0.05


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    least=st.floats(0.2, 1.5),
    width=st.floats(0.0, 2.0),
    confidence=st.floats(0.5, 0.99),
    peaks=st.booleans(),
)
def test_what_fits_is_the_same_whether_all_or_the_open_are_asked_about(
    seed: int, least: float, width: float, confidence: float, peaks: bool
) -> None:
    corrections = JumpingCorrections(least, least + width, seed)
    problem = SEARCH.problems[0]
    exact = judge(problem, VALID.table, bounding_stages, confidence, corrections)
    found = judge_sparingly(problem, VALID.table, bounding_stages, confidence, corrections, peaks=peaks)
    assert (found.fits == exact.fits).all()
    assert (found.fits_at_even_odds == exact.fits_at_even_odds).all()
    capacity = problem.cluster.capacity_bytes
    assert ((found.needed_bytes > capacity) == (exact.needed_bytes > capacity)).all()
    if peaks:
        assert (found.peak_bytes[exact.fits] == exact.peak_bytes[exact.fits]).all()


SEARCH = learned_search(JumpingCorrections())
POINTS = whole_lattice(SEARCH)
VALID = POINTS.take(POINTS.valid)
