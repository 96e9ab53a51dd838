"""The table that a terminal shows."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from app.plan_table import show_result

PLAN: dict[str, Any] = {
    "rank": 1,
    "nodes": 8,
    "strategy": {
        "framework": "megatron-lm",
        "tensor_parallel_size": 4,
        "context_parallel_size": 1,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 5,
        "expert_parallel_size": 1,
        "data_parallel_size": 8,
        "zero_stage": 1,
        "micro_batch_size": 2,
        "activation_checkpointing": "selective",
        "offload": "none",
    },
    "time": {"step_seconds": 15.328},
    "throughput": {"mfu": 0.5204},
    "memory": {"peak_gib": 67.31, "capacity_gib": 79.19},
    "explanation": ["Fastest [of all].", "Bound by the GPUs."],
}
RESULT: dict[str, Any] = {
    "plans": [PLAN, PLAN | {"rank": 2, "explanation": ["Slower by 1 %.", "More."]}],
    "verdict": "Run it.",
    "evaluated": 1234,
    "space_size": 5678901,
    "trials": 128,
    "elapsed_seconds": 1.6,
}


def shown(result: dict[str, Any]) -> list[str]:
    console = Console(width=160, file=io.StringIO())
    show_result(result, console)
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_plan_is_a_row() -> None:
    lines = [" ".join(line.split()) for line in shown(RESULT)]
    assert lines[0] == "# framework TP CP PP VPP EP DP ZeRO mbs recompute s/step MFU peak GiB of"
    assert lines[2] == "1 megatron-lm 4 1 2 5 1 8 1 2 selective 15.33 52.0% 67.3 79.2"
    assert lines[3].startswith("2 ")


def test_the_best_is_explained_whole_and_the_others_in_a_sentence() -> None:
    lines = shown(RESULT)
    assert lines[4:] == [
        "Why plan 1",
        "Fastest [of all].",
        "Bound by the GPUs.",
        "The others",
        "2  Slower by 1 %.",
        "Run it.",
        "1,234 strategies scored of 5,678,901 combinations, 128 trials, 1.60 s.",
    ]


def test_offload_has_a_column_where_a_plan_uses_it() -> None:
    offloaded = PLAN | {"strategy": PLAN["strategy"] | {"offload": "optimizer"}}
    lines = shown(RESULT | {"plans": [PLAN, offloaded]})
    assert "offload" in lines[0].split()
    assert [line.split()[11] for line in lines[2:4]] == ["none", "optimizer"]


def test_without_plans_the_verdict_speaks() -> None:
    assert shown(RESULT | {"plans": [], "verdict": "Misses by 3 GiB."})[0] == "Misses by 3 GiB."


def test_a_single_plan_has_no_others() -> None:
    assert "The others" not in shown(RESULT | {"plans": [PLAN]})
