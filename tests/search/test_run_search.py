"""The whole search: budget, determinism, resumption, cancellation, and what a result promises."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from cost_models.workload import Workload
from search import SearchProblem, SearchResult, Trial, run_search
from search.optuna_engine import BLOCK_TRIALS
from search.rank import PLAN_FIELDS
from tests.search.problems import NARROW, Recorder, cluster, run, small_search

SMALL = small_search(space={"context_parallel_size": (1,), "tensor_parallel_size": (1, 2, 4)}, trials=80)
SHORT_OF_MEMORY = small_search(
    "llama-3-70b", clusters=(cluster("dgx-a100"),), frameworks=("deepspeed", "fsdp2"), trials=96
)


def key_of(plan: dict[str, Any]) -> tuple[Any, ...]:
    return (plan["nodes"], *(plan["strategy"][name] for name in PLAN_FIELDS))


def check_promises(search: SearchProblem, result: SearchResult) -> None:
    """What holds for every result."""
    body = result.as_dict()
    json.dumps(body, allow_nan=False)
    assert len(body["plans"]) <= search.plans
    for name in ("plans", "tight", "pareto"):
        assert [plan["rank"] for plan in body[name]] == list(range(1, len(body[name]) + 1))
        for plan in body[name]:
            assert plan["valid"]
            assert plan["explanation"]
            sizes = ("tensor", "context", "pipeline", "data")
            gpus = math.prod(plan["strategy"][f"{size}_parallel_size"] for size in sizes)
            assert gpus == plan["nodes"] * search.clusters[0].gpus_per_node
            for field, values in search.space.items():
                assert plan["strategy"][field] in values
    assert all(plan["fits"] for plan in (*body["plans"], *body["pareto"]))
    assert not any(plan["fits"] for plan in body["tight"])
    for name in ("plans", "tight"):
        assert len({key_of(plan) for plan in body[name]}) == len(body[name])
    if search.objective == "step_time":
        seconds = [plan["time"]["step_seconds"] for plan in body["plans"]]
        assert seconds == sorted(seconds)


@pytest.mark.parametrize("search", [SMALL, SHORT_OF_MEMORY], ids=["small", "short of memory"])
def test_a_result_keeps_its_promises(search: SearchProblem) -> None:
    recorder = Recorder()
    result = run(search, recorder)
    check_promises(search, result)
    assert len(result.plans) == search.plans
    assert result.trials == search.trials
    assert result.stopped_by == "trials"
    # never worse than anything that was seen
    seen = [trial.step_seconds for trial in recorder.trials if trial.feasible and trial.step_seconds]
    best = result.plans[0]["time"]["step_seconds"]
    assert best <= min(seen) + 1e-6
    lattice = [p.best_step_seconds for p in recorder.progress if p.phase == "lattice" and p.best_step_seconds]
    assert best <= min(lattice) + 1e-6


def test_the_same_request_gives_the_same_answer_and_another_seed_asks_otherwise() -> None:
    first, second, other = Recorder(), Recorder(), Recorder()
    assert run(SMALL, first).as_dict() == run(SMALL, second).as_dict()
    assert [trial.parameters for trial in first.trials] == [trial.parameters for trial in second.trials]
    run(replace(SMALL, seed=1), other)
    assert [trial.parameters for trial in first.trials] != [trial.parameters for trial in other.trials]


@pytest.mark.parametrize(("objective", "blocks"), [("step_time", 1), ("step_time", 2), ("pareto", 1)])
def test_a_resumed_search_ends_as_if_it_had_not_been_interrupted(objective: Any, blocks: int) -> None:
    search = replace(SMALL, objective=objective)
    whole, resumed = Recorder(), Recorder()
    expected = run(search, whole)
    stored = json.dumps([trial.as_dict() for block in whole.blocks[:blocks] for trial in block])
    past = [Trial.from_dict(values) for values in json.loads(stored)]
    assert run(search, resumed, past).as_dict() == expected.as_dict()
    assert resumed.trials == whole.trials[len(past) :]


def test_trials_of_another_space_are_tried_anew_and_not_stored_twice() -> None:
    whole, resumed = Recorder(), Recorder()
    expected = run(SMALL, whole)
    foreign = [replace(trial, parameters={"layout": 10**6}) for trial in whole.blocks[0]]
    assert run(SMALL, resumed, foreign).as_dict() == expected.as_dict()
    assert resumed.trials == whole.trials[len(foreign) :]


def test_trials_are_numbered_and_counted() -> None:
    recorder = Recorder()
    result = run(replace(SMALL, trials=BLOCK_TRIALS + 3), recorder)
    assert [len(block) for block in recorder.blocks] == [BLOCK_TRIALS, 3]
    assert [trial.number for trial in recorder.trials] == list(range(BLOCK_TRIALS + 3))
    assert result.trials == BLOCK_TRIALS + 3


def test_without_trials_the_lattice_answers() -> None:
    recorder = Recorder()
    result = run(replace(SMALL, trials=0), recorder)
    assert not recorder.trials
    assert result.stopped_by == "trials"
    check_promises(SMALL, result)


def test_seconds_end_a_search_between_blocks() -> None:
    now = [0.0]

    def report(progress: Any, trials: Any) -> None:
        now[0] += 1.0 if trials else 0.0

    result = run_search(replace(SMALL, seconds=2.0), report=report, cancelled=lambda: False, clock=lambda: now[0])
    assert (result.stopped_by, result.trials) == ("seconds", 2 * BLOCK_TRIALS)
    assert result.elapsed_seconds == 2.0
    check_promises(SMALL, result)


def test_seconds_end_a_search_within_a_block() -> None:
    asked = 0

    def clock() -> float:
        # Every look at the clock takes a second once the study has told its first block.
        nonlocal asked
        asked += bool(recorder.blocks)
        return float(asked)

    recorder = Recorder()
    result = run_search(replace(SMALL, seconds=7.0), report=recorder, cancelled=lambda: False, clock=clock)
    assert result.stopped_by == "seconds"
    assert BLOCK_TRIALS < result.trials < 2 * BLOCK_TRIALS
    assert [trial.number for trial in recorder.trials] == list(range(result.trials))
    check_promises(SMALL, result)


def test_progress_goes_on_from_phase_to_phase_and_its_best_only_falls() -> None:
    recorder = Recorder()
    result = run(replace(SHORT_OF_MEMORY, trials=2 * BLOCK_TRIALS), recorder)
    seen = [(one.phase, one.done, one.total) for one in recorder.progress if one.phase != "lattice"]
    plans, trials = SHORT_OF_MEMORY.plans, 2 * BLOCK_TRIALS
    assert seen == [
        ("study", BLOCK_TRIALS, trials),
        ("study", trials, trials),
        ("ranking", 0, plans),
        ("ranking", plans, plans),
    ]
    best = [one.best_step_seconds for one in recorder.progress if one.best_step_seconds is not None]
    assert best == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(result.plans[0]["time"]["step_seconds"], abs=1e-6)


def test_cancelling_keeps_what_was_found() -> None:
    recorder = Recorder()
    result = run_search(SMALL, report=recorder, cancelled=lambda: len(recorder.blocks) == 1, clock=lambda: 0.0)
    assert (result.stopped_by, result.trials) == ("cancelled", BLOCK_TRIALS)
    assert result.plans
    check_promises(SMALL, result)


def test_cancelled_before_it_began() -> None:
    result = run_search(SMALL, report=Recorder(), cancelled=lambda: True, clock=lambda: 0.0)
    assert (result.stopped_by, result.trials, result.evaluated) == ("cancelled", 0, 0)
    assert result.plans == ()
    assert "cancelled" in result.verdict


def test_every_feasible_trial_fits_and_repeats_have_the_same_figures() -> None:
    recorder = Recorder()
    run(SHORT_OF_MEMORY, recorder)
    assert all(trial.valid and trial.fits for trial in recorder.trials if trial.feasible)
    by_strategy: dict[str, set[Any]] = {}
    for trial in recorder.trials:
        by_strategy.setdefault(json.dumps(trial.strategy), set()).add(trial.step_seconds)
    assert all(len(figures) == 1 for figures in by_strategy.values())


def test_the_study_refines_what_the_lattice_cannot_hold() -> None:
    search = small_search(
        "llama-2-13b",
        clusters=(cluster("p4d"),),
        frameworks=("megatron-lm",),
        space={"activation_checkpointing": ("full",), "offload": ("none",), "pipeline_parallel_size": (1,)},
        trials=96,
    )
    lattice = run(replace(search, trials=0)).plans[0]
    refined = run(search).plans[0]
    assert refined["time"]["step_seconds"] < lattice["time"]["step_seconds"]
    assert refined["strategy"]["checkpointed_layers"] < lattice["strategy"]["checkpointed_layers"]


def test_current_is_scored_and_compared() -> None:
    current = {"framework": "megatron-lm", "tensor_parallel_size": 4, "activation_checkpointing": "full"}
    result = run(replace(SMALL, current=current))
    assert result.current is not None
    assert result.current["strategy"]["tensor_parallel_size"] == 4
    saved = 1 - result.plans[0]["time"]["step_seconds"] / result.current["time"]["step_seconds"]
    assert result.current["gain"] == pytest.approx(saved)
    against = result.plans[0]["explanation"][3]
    assert against.startswith("Over megatron-lm TP4 DP2 ZeRO-0, micro-batch 1, full checkpointing")
    assert "s less recompute" in against
    needs = [one["memory"]["required_upper_gib"] for one in (result.plans[0], result.current)]
    assert f"up to {needs[0]:.1f} instead of {needs[1]:.1f} of" in against
    assert saved > 0


def test_an_invalid_current_has_no_gain() -> None:
    result = run(replace(SMALL, trials=0, current={"framework": "fsdp2", "tensor_parallel_size": 3}))
    assert result.current is not None
    assert not result.current["valid"]
    assert result.current["gain"] is None
    assert result.current["violations"]


def test_the_best_current_is_not_lost() -> None:
    best = run(SMALL).plans[0]
    result = run(replace(SMALL, trials=0, current=best["strategy"]))
    assert result.current is not None
    assert result.plans[0]["time"]["step_seconds"] <= best["time"]["step_seconds"]
    assert result.current["gain"] == pytest.approx(0.0, abs=1e-6)


def test_cost_prefers_fewer_nodes_and_time_more() -> None:
    sizes = tuple(cluster(nodes=nodes, usd_per_gpu_hour=2.0) for nodes in (1, 2))
    fast = run(small_search(clusters=sizes, space=NARROW))
    cheap = run(small_search(clusters=sizes, space=NARROW, objective="cost"))
    assert fast.plans[0]["nodes"] == 2
    assert cheap.plans[0]["nodes"] == 1
    assert run(small_search(clusters=sizes, space=NARROW, objective="energy")).plans[0]["nodes"] == 1


def test_plans_that_miss_the_deadline_are_none() -> None:
    workload = Workload(sequence_length=4096, global_batch_size=32, training_tokens=1e11)
    sizes = tuple(cluster(nodes=nodes) for nodes in (1, 2, 4))
    free = small_search(clusters=sizes, workload=workload, space=NARROW, objective="energy")
    slow = run(free).plans[0]
    assert slow["nodes"] == 1
    late = run(replace(free, deadline_days=0.9 * slow["cost"]["days"]))
    assert late.plans[0]["nodes"] == 2
    assert all(plan["cost"]["days"] <= 0.9 * slow["cost"]["days"] for plan in late.plans)
    assert late.rejected["deadline"] > 0


def test_pareto_ranks_the_front() -> None:
    search = replace(SMALL, objective="pareto")
    result = run(search)
    check_promises(search, result)
    figures = [(plan["time"]["step_seconds"], plan["memory"]["peak_gib"]) for plan in result.plans]
    assert figures == sorted(figures)
    assert [peak for _, peak in figures] == sorted((peak for _, peak in figures), reverse=True)
    assert len(result.plans) == search.plans


def test_default_frameworks_hold_ddp_where_a_replica_fits() -> None:
    small = run(small_search("gpt-2-xl", frameworks=None, trials=0))
    assert any("ddp" in assumption for assumption in small.assumptions)
    large = run(small_search("llama-3-8b", frameworks=None, trials=0))
    assert not any("ddp" in assumption for assumption in large.assumptions)
    named = run(small_search("gpt-2-xl", frameworks=("ddp",), trials=0))
    assert {plan["strategy"]["framework"] for plan in named.plans} == {"ddp"}
