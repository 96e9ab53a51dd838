from __future__ import annotations

from typing import Any

import pytest

from search.evaluator import Evaluator
from search.grounds import grounds
from tests.search.problems import cluster, small_search

MEGATRON = {"framework": "megatron-lm", "zero_stage": 1}
DEEPSPEED = {"framework": "deepspeed", "zero_stage": 3}


def said(model: str, preset: str, strategies: list[dict[str, Any]], seconds: list[float]) -> list[str]:
    evaluator = Evaluator(small_search(model, clusters=(cluster(preset),)))
    plans = evaluator.answers(0, evaluator.resolve_strategies(0, strategies))
    return grounds(evaluator.search.problems[0], plans, seconds)


def test_runs_behind_the_first_plan_are_counted() -> None:
    [basis, tie] = said("llama-3-8b", "dgx-a100", [MEGATRON, DEEPSPEED], [1.0, 1.05])
    assert basis.startswith("Its step time rests on 1,481 public measured runs of megatron-lm on the silicon of a100-")
    assert tie.startswith("Plans 1 and 2 lie within 8.4%")


def test_where_no_run_is_behind_it_the_best_plan_that_has_some_is_named() -> None:
    [basis, safest, behind] = said("llama-3-8b", "dgx-h100", [DEEPSPEED, MEGATRON], [1.0, 1.1])
    assert basis == "No measured run of deepspeed on the silicon of h100-sxm5-80gb stands behind its step time."
    assert safest.startswith("The best plan that measured runs stand behind is plan 2 (megatron-lm DP8 ZeRO-1")
    assert safest.endswith(": it costs 10.0% more and rests on 13 public measured runs of megatron-lm on this silicon.")
    assert behind.startswith("The next plan is 10.0% behind, more than the 8.4%")


def test_where_no_plan_has_runs_that_is_said() -> None:
    [_, none] = said("llama-3-8b", "mi300x-node", [MEGATRON], [1.0])
    assert none == "No plan here rests on measured runs of its framework on this GPU: measure before a long run."


def test_what_is_not_among_the_runs_is_said_with_them() -> None:
    evaluator = Evaluator(small_search("qwen3-30b-a3b", clusters=(cluster("dgx-h100"),)))
    [plan] = evaluator.answers(0, evaluator.resolve_strategies(0, [MEGATRON]))
    [basis] = grounds(evaluator.search.problems[0], [plan], [1.0])
    gaps = [note for note in plan["provenance"]["notes"] if "none of these runs" in note and note.startswith("Step")]
    for gap in gaps:
        assert gap.removeprefix("Step time: ").rstrip(".") in basis


@pytest.mark.parametrize(("others", "span"), [([1.02], "1 and 2"), ([1.02, 1.08], "1 to 3"), ([1.02, 1.2], "1 and 2")])
def test_plans_within_the_error_tie(others: list[float], span: str) -> None:
    strategies = [MEGATRON] * (1 + len(others))
    assert said("llama-3-8b", "dgx-a100", strategies, [1.0, *others])[-1].startswith(f"Plans {span} lie within")
