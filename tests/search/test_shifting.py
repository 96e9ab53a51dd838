"""Layers that move between stages make a step shorter and change nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cost_models.workload import Workload
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.run import run_search
from search.shifting import shift_layers
from search.watch import Watch
from tests.search.problems import Recorder, cluster, run, small_search

EXPERTS = small_search(
    "qwen3-30b-a3b",
    clusters=(cluster("p4d", nodes=4),),
    frameworks=("megatron-lm",),
    workload=Workload(sequence_length=2048, global_batch_size=256),
)
OWN: dict[str, Any] = {
    "framework": "megatron-lm",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 4,
    "virtual_pipeline_size": 5,
    "expert_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "zero_stage": 1,
    "micro_batch_size": 4,
    "layers_per_stage": [2, 2, 3, 1, 3, 3, 3, 2, 3, 3, 3, 2, 3, 3, 3, 2, 2, 2, 2, 1],
}


def watch(*, seconds: float = math.inf) -> Watch:
    return Watch(lambda: 1.0, lambda: False, 0.0, seconds)


def shifted(search: SearchProblem, strategy: dict[str, Any]) -> list[tuple[dict[str, Any], float]]:
    evaluator = Evaluator(search)
    found = shift_layers(evaluator, evaluator.evaluate_strategies(0, [strategy]), watch())
    return [(found.table.row(row), float(found.step_seconds[row])) for row in range(len(found))]


def test_each_move_is_faster_than_the_last_and_moves_one_layer() -> None:
    evaluator = Evaluator(EXPERTS)
    own = evaluator.evaluate_strategies(0, [OWN])
    last, seconds = own.table.row(0), float(own.step_seconds[0])
    moves = shifted(EXPERTS, OWN)
    assert moves
    for strategy, faster in moves:
        changed = zip(strategy["layers_per_stage"], last["layers_per_stage"], strict=True)
        assert sorted(now - before for now, before in changed if now != before) == [-1, 1]
        assert {**strategy, "layers_per_stage": None} == {**last, "layers_per_stage": None}
        assert faster < seconds
        last, seconds = strategy, faster
    assert seconds < 0.95 * float(own.step_seconds[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline_parallel_size": 1, "virtual_pipeline_size": 1, "layers_per_stage": None},
        {"framework": "nanotron", "virtual_pipeline_size": 1, "layers_per_stage": None, "expert_parallel_size": 1},
    ],
    ids=["no pipeline", "a framework that splits layers itself"],
)
def test_what_has_no_layers_to_move_is_left_alone(changes: dict[str, Any]) -> None:
    assert shifted(EXPERTS, {**OWN, **changes}) == []


def test_layers_that_space_names_stay() -> None:
    search = small_search(
        "qwen3-30b-a3b",
        clusters=EXPERTS.clusters,
        workload=EXPERTS.workload,
        space={"layers_per_stage": (tuple(OWN["layers_per_stage"]),)},
    )
    assert shifted(search, OWN) == []


def test_a_search_out_of_time_moves_nothing() -> None:
    evaluator = Evaluator(EXPERTS)
    plans = evaluator.evaluate_strategies(0, [OWN])
    assert len(shift_layers(evaluator, plans, watch(seconds=1.0))) == 0


def test_no_single_move_beats_the_first_plan_of_a_search() -> None:
    plan = run(EXPERTS).plans[0]
    chunks = plan["strategy"]["layers_per_stage"]
    ways = []
    for giver in range(len(chunks)):
        for taker in range(len(chunks)):
            if giver != taker and chunks[giver]:
                layers = list(chunks)
                layers[giver] -= 1
                layers[taker] += 1
                ways.append({**plan["strategy"], "layers_per_stage": layers})
    scored = Evaluator(EXPERTS).evaluate_strategies(0, ways)
    assert len(ways) > 100
    assert plan["time"]["step_seconds"] <= scored.step_seconds[scored.fits].min() * 1.005


def test_the_last_progress_knows_what_moving_found() -> None:
    recorder = Recorder()
    result = run_search(replace(EXPERTS, trials=0), report=recorder, cancelled=lambda: False, clock=lambda: 0.0)
    *_, before, last = (progress.best_step_seconds for progress in recorder.progress)
    assert before is not None
    assert last is not None
    assert last == pytest.approx(result.plans[0]["time"]["step_seconds"], abs=1e-8)
    assert last < 0.99 * before
