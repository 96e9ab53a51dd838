from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from cost_models.units import GIB
from cost_models.workload import Workload
from search.alternatives import alternatives, price_alternatives
from search.evaluator import Evaluator
from tests.search.problems import NARROW, cluster, run, small_search

TOO_SMALL = small_search("llama-3-70b", clusters=(cluster("dgx-a100", host=None),), space=NARROW)

OFFLOADED = {
    "framework": "deepspeed",
    "zero_stage": 3,
    "offload": "nvme",
    "offload_fraction": 1.0,
    "tensor_parallel_size": 1,
    "context_parallel_size": 1,
    "micro_batch_size": 1,
    "activation_checkpointing": "full",
}


def test_alternatives_are_one_step_away() -> None:
    search = small_search("llama-3-70b", clusters=(cluster(nodes=8),))
    evaluator = Evaluator(search)
    table = evaluator.resolve_strategies(
        0,
        [
            {
                "framework": "megatron-lm",
                "tensor_parallel_size": 4,
                "pipeline_parallel_size": 2,
                "micro_batch_size": 2,
                "zero_stage": 1,
                "activation_checkpointing": "selective",
            }
        ],
    )
    words = [alternative.words for alternative in alternatives(table.row(0))]
    assert words == [
        "tensor parallel 2 instead of 4",
        "tensor parallel 8 instead of 4",
        "pipeline parallel 1 instead of 2",
        "pipeline parallel 4 instead of 2",
        "context parallel 2 instead of 1",
        "micro-batch 1 instead of 2",
        "micro-batch 4 instead of 2",
        "no activation checkpointing",
        "full activation checkpointing",
        "ZeRO stage 0 instead of 1",
        "ZeRO stage 2 instead of 1",
    ]


def test_an_alternative_recomputes_as_much_unless_that_is_what_changes() -> None:
    evaluator = Evaluator(small_search("llama-3-70b", clusters=(cluster(nodes=8),)))
    own = {
        "framework": "megatron-lm",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "activation_checkpointing": "selective",
        "recompute_modules": ["core_attn", "mlp"],
        "checkpointed_layers": 15,
    }
    strategy = evaluator.resolve_strategies(0, [own]).row(0)
    ways = {way.words: evaluator.resolve_strategies(0, [way.strategy]).row(0) for way in alternatives(strategy)}
    assert {words: (way["checkpointed_layers"], way["recompute_modules"]) for words, way in ways.items()} == {
        "tensor parallel 2 instead of 4": (15, ["core_attn", "mlp"]),
        "tensor parallel 8 instead of 4": (15, ["core_attn", "mlp"]),
        "pipeline parallel 1 instead of 2": (30, ["core_attn", "mlp"]),
        "pipeline parallel 4 instead of 2": (8, ["core_attn", "mlp"]),
        "context parallel 2 instead of 1": (15, ["core_attn", "mlp"]),
        "micro-batch 2 instead of 1": (15, ["core_attn", "mlp"]),
        "no activation checkpointing": (0, []),
        "full activation checkpointing": (40, []),
        "ZeRO stage 1 instead of 0": (15, ["core_attn", "mlp"]),
    }


def test_what_an_alternative_costs_is_a_real_estimate() -> None:
    search = small_search("llama-3-8b")
    evaluator = Evaluator(search)
    own = {"framework": "fsdp2", "micro_batch_size": 2, "activation_checkpointing": "selective"}
    strategy = evaluator.resolve_strategies(0, [own]).row(0)
    ((priced,), _) = price_alternatives(evaluator, 0, [strategy])
    sentence = next(one.sentence for one in priced if "micro-batch 4 instead of 2" in one.sentence)
    scored = evaluator.evaluate_strategies(0, [own, {**own, "micro_batch_size": 4}])
    seconds = scored.step_seconds
    assert f"{seconds[1]:.3g} s a step" in sentence
    assert f"({(seconds[1] / seconds[0] - 1) * 100:+.1f} %)" in sentence
    assert f"needs up to {scored.required_upper_bytes[1] / GIB:.1f} of" in sentence
    assert ("does not fit" in sentence) == (not scored.fits[1])


def test_steps_that_break_a_rule_are_named_with_it() -> None:
    search = small_search("mixtral-8x7b", workload=Workload(sequence_length=4096, global_batch_size=8))
    evaluator = Evaluator(search)
    own = {"framework": "megatron-lm", "expert_parallel_size": 8, "zero_stage": 1}
    ((*priced,),), scored = price_alternatives(evaluator, 0, [evaluator.resolve_strategies(0, [own]).row(0)])
    found = {one.alternative.words: one.as_dict() for one in priced}
    broken = {words: entry["violations"] for words, entry in found.items() if not entry["valid"]}
    assert broken == {
        "expert parallel 16 instead of 8": ["experts_not_divisible", "expert_group_not_divisible"],
        "micro-batch 2 instead of 1": ["batch_not_divisible"],
        "pipeline parallel 2 instead of 1": ["expert_group_not_divisible"],
    }
    for entry in found.values():
        table = evaluator.resolve_strategies(0, [entry["strategy"]])
        again = evaluator.evaluate(0, table)
        assert bool(again.valid[0]) is entry["valid"]
        assert entry["fields"].items() <= entry["strategy"].items()
        if not entry["valid"]:
            assert entry["step_seconds"] is entry["relative"] is entry["required_upper_gib"] is entry["fits"] is None
            continue
        assert entry["step_seconds"] == pytest.approx(again.step_seconds[0])
        assert entry["required_upper_gib"] == pytest.approx(again.required_upper_bytes[0] / GIB)
        assert entry["fits"] == again.fits[0]
    assert len(scored) == len(found) - len(broken)


def test_an_alternative_says_whether_the_space_allows_it() -> None:
    search = small_search(space={"tensor_parallel_size": (1, 2)})
    evaluator = Evaluator(search)
    own = {"framework": "megatron-lm", "tensor_parallel_size": 2, "zero_stage": 1}
    ((*priced,),), scored = price_alternatives(evaluator, 0, [evaluator.resolve_strategies(0, [own]).row(0)])
    inside = {one.alternative.words: one.in_space for one in priced if one.alternative.fields[0].startswith("tensor")}
    assert inside == {"tensor parallel 1 instead of 2": True, "tensor parallel 4 instead of 2": False}
    assert set(scored.table.tensor_parallel_size) == {1, 2}


def test_the_first_plan_says_why_it_wins_and_what_binds_it() -> None:
    result = run(small_search(space=NARROW))
    standing, time_bound, memory_bound, *others = result.plans[0]["explanation"]
    assert standing.startswith(f"Fastest of {result.evaluated:,} strategies scored: ")
    assert "than the next plan" in standing
    assert time_bound.startswith("Bound by ")
    assert re.search(r"up to \d+\.\d of \d+\.\d GiB", memory_bound)
    assert sum(sentence.startswith("Alternative, ") for sentence in others) >= 3
    assert any(sentence.startswith("Its step time rests on ") for sentence in others)
    assert "than the first plan" in result.plans[1]["explanation"][0]


def test_the_verdict_names_the_plan() -> None:
    result = run(small_search(space=NARROW))
    assert result.verdict.startswith(f"Run {result.plans[0]['strategy']['framework']} ")


def test_where_nothing_fits_the_verdict_says_by_how_much_and_what_helps() -> None:
    result = run(TOO_SMALL)
    assert result.plans == ()
    assert result.stopped_by == "trials"
    missing = re.search(r"needs up to ([\d.]+) of ([\d.]+) GiB of a GPU, ([\d.]+) GiB too much", result.verdict)
    assert missing is not None
    needed, capacity, excess = map(float, missing.groups())
    assert excess == pytest.approx(needed - capacity, abs=0.11)
    assert "LoRA" in result.verdict
    assert re.search(r"with .*\b\d+ nodes", result.verdict)
    assert result.rejected["out_of_memory"] > 0


def test_where_the_host_is_too_small_the_verdict_says_by_how_much() -> None:
    host = cluster().host
    assert host is not None
    poor = cluster(host=replace(host, memory_bytes=20 * GIB, nvme_bytes=40 * GIB))
    space = {name: (value,) for name, value in OFFLOADED.items()}
    result = run(small_search(clusters=(poor,), frameworks=None, space=space))
    assert not result.plans
    misses = re.findall(r"(\d+) of (\d+) GiB of (memory|NVMe), (\d+) GiB too much", result.verdict)
    assert [(room, what) for _, room, what, _ in misses] == [("20", "memory"), ("40", "NVMe")]
    evaluator = Evaluator(small_search(clusters=(poor,)))
    (estimate,) = evaluator.answers(0, evaluator.resolve_strategies(0, [OFFLOADED]))
    memory = estimate["memory"]
    needs = [max(memory["host_gib_per_node"].values()), memory["nvme_gib_per_node"]]
    assert [float(need) for need, *_ in misses] == [round(need) for need in needs]
    assert [float(miss) for *_, miss in misses] == [
        round(need - room) for need, room in zip(needs, (20, 40), strict=True)
    ]


def test_where_the_host_is_unknown_the_verdict_asks_for_it() -> None:
    space = {name: (value,) for name, value in OFFLOADED.items()}
    search = small_search(clusters=(cluster(host=None),), frameworks=None, space=space)
    assert "the cluster does not say what its host has" in run(search).verdict


def test_where_no_strategy_is_valid_the_verdict_names_the_rules() -> None:
    search = small_search(space={"pipeline_parallel_size": (8,), "zero_stage": (3,)}, frameworks=("megatron-lm",))
    result = run(search)
    assert result.plans == ()
    assert "zero_stage_unsupported" in result.verdict
    assert "`space` not narrowing" in result.verdict


def test_a_missed_deadline_is_named_with_the_nodes_that_meet_it() -> None:
    workload = Workload(sequence_length=4096, global_batch_size=32, training_tokens=1e11)
    result = run(small_search(workload=workload, space=NARROW, deadline_days=1.0))
    assert result.plans == ()
    assert "meets the deadline of 1 days" in result.verdict
    assert re.search(r"\d+ nodes?\b", result.verdict)


def test_other_frameworks_are_a_remedy() -> None:
    search = small_search("llama-2-7b", frameworks=("ddp",))
    result = run(search)
    assert result.plans == ()
    assert "It would fit with frameworks megatron-lm, deepspeed, fsdp2 (" in result.verdict


def test_the_gain_over_the_current_strategy_is_broken_down() -> None:
    current = {"framework": "fsdp2", "micro_batch_size": 1, "activation_checkpointing": "full"}
    result = run(small_search(space=NARROW, current=current, trials=0))
    found, best = result.current, result.plans[0]
    assert found is not None
    parts = found["time"]["breakdown_seconds"]
    assert found["saved_seconds"] == {
        part: pytest.approx(seconds - best["time"]["breakdown_seconds"][part]) for part, seconds in parts.items()
    }
    saved = sum(found["saved_seconds"].values())
    assert found["gain"] == pytest.approx(saved / found["time"]["step_seconds"])
    assert found["changes"]["activation_checkpointing"]["from"] == "full"
    changed = {name: change["to"] for name, change in found["changes"].items()}
    assert {**found["strategy"], **changed} == best["strategy"]


def test_the_reduction_of_gradients_is_named() -> None:
    result = run(small_search(clusters=(cluster(nodes=2),), space=NARROW, trials=0))
    for plan in result.plans:
        strategy = plan["strategy"]
        ranks = strategy["data_parallel_size"] * strategy["context_parallel_size"]
        assert np.prod([level["ranks"] for level in plan["collectives"]]) == ranks
    assert any(s.startswith("Gradients are priced as one ") for s in result.plans[0]["explanation"])
