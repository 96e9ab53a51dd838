from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from cost_models.cluster import Cluster
from cost_models.cluster_input import resolve_cluster
from cost_models.units import GIB
from cost_models.workload import FineTuning, Workload
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.remedies import Remedy, hastenings, remedies
from search.watch import Watch
from tests.search.problems import NARROW, run, small_search

AT_LEISURE: Final = Watch(lambda: 0.0, lambda: False, 0.0, 1.0)


def cards(gpu: str, gpus: int, **fields: Any) -> Cluster:
    return resolve_cluster({"nodes": 1, "gpus_per_node": gpus, "gpu": gpu, **fields})


def too_small(gpu: str, gpus: int, workload: Workload, model: str = "llama-3-8b") -> SearchProblem:
    return small_search(model, clusters=(cards(gpu, gpus),), workload=workload, frameworks=None, trials=0)


LORA: Final = FineTuning("lora")
SEARCHES: Final[Mapping[str, SearchProblem]] = {
    "one GPU": too_small("h200-sxm5-141gb", 1, Workload(4096, 8)),
    "small card": too_small("rtx-4090-24gb", 1, Workload(4096, 16)),
    "long": too_small("a100-sxm4-40gb", 1, Workload(32768, 8, fine_tuning=LORA)),
    "fp32": too_small("a100-sxm4-40gb", 1, Workload(4096, 8, precision="fp32", fine_tuning=LORA)),
    "adapters": too_small("h100-sxm5-80gb", 1, Workload(4096, 16, fine_tuning=LORA), "llama-3-70b"),
    "narrowed": small_search(
        workload=Workload(32768, 32),
        space={
            "tensor_parallel_size": (1,),
            "context_parallel_size": (1,),
            "micro_batch_size": (1, 2),
            "activation_checkpointing": ("none",),
        },
        trials=0,
    ),
    "ddp": small_search("llama-2-7b", frameworks=("ddp",), trials=0),
    "poor host": small_search(
        clusters=(cards("rtx-4090-24gb", 1, host={"memory_gib": 32}),), frameworks=None, trials=0
    ),
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Remedy]]:
    return {name: remedies(search, AT_LEISURE) for name, search in SEARCHES.items()}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("one GPU", "`host` described, 256 GiB a node"),
        ("one GPU", "optimizer adamw-8bit"),
        ("one GPU", "gradients accumulated in bf16"),
        ("one GPU", "2 nodes"),
        ("small card", "LoRA of rank 16 instead of training all weights"),
        ("long", "a fused loss"),
        ("long", "sequences of 16,384"),
        ("fp32", "precision bf16"),
        ("adapters", "QLoRA of rank 16, the frozen weights in NF4"),
        ("adapters", "3 nodes"),
        ("ddp", "frameworks megatron-lm, deepspeed, fsdp2"),
        ("narrowed", "`space` not narrowing activation_checkpointing"),
        ("poor host", "more host memory, 256 GiB a node"),
    ],
)
def test_each_kind_of_change_is_found(found: dict[str, list[Remedy]], name: str, change: str) -> None:
    assert change in [remedy.change.words for remedy in found[name]]


@pytest.mark.parametrize("name", SEARCHES)
def test_what_a_verdict_says_helps_does(found: dict[str, list[Remedy]], name: str) -> None:
    search = SEARCHES[name]
    assert found[name]
    for remedy in found[name]:
        strategy = remedy.plan.table.row(0)
        again = Evaluator(remedy.change.search).evaluate_strategies(0, [strategy])
        assert again.acceptable[0]
        assert again.step_seconds[0] == pytest.approx(remedy.plan.step_seconds[0], rel=1e-9)
        assert f"{again.step_seconds[0]:.3g} s a step" in remedy.words
        assert f"up to {again.required_upper_bytes[0] / GIB:.1f} GiB" in remedy.words
    assert not run(search).plans


def test_the_verdict_names_every_remedy(found: dict[str, list[Remedy]]) -> None:
    verdict = run(SEARCHES["one GPU"]).verdict
    for remedy in found["one GPU"]:
        assert remedy.words in verdict


def test_of_one_kind_the_smallest_change_is_named(found: dict[str, list[Remedy]]) -> None:
    search = SEARCHES["small card"]
    nodes = {remedy.change.search.clusters[0].nodes for remedy in found["small card"]} - {1}
    assert nodes == {8}
    for fewer in (2, 3, 4, 6):
        assert not run(replace(search, clusters=(replace(search.clusters[0], nodes=fewer),))).plans
    poorer = replace(search, clusters=(cards("rtx-4090-24gb", 1, host={"memory_gib": 128}),))
    assert not run(poorer).plans


def test_a_deadline_is_met_by_what_is_said_to_meet_it() -> None:
    workload = Workload(sequence_length=4096, global_batch_size=96, training_tokens=1e11)
    search = small_search(workload=workload, space=NARROW, deadline_days=8.0)
    days = run(replace(search, deadline_days=None)).plans[0]["cost"]["days"]
    times = days / 8.0
    assert times > 1
    helped = {remedy.change.words: remedy for remedy in hastenings(search, times, AT_LEISURE)}
    for remedy in helped.values():
        again = Evaluator(remedy.change.search).evaluate_strategies(0, [remedy.plan.table.row(0)])
        assert again.acceptable[0]
    sizes = [remedy.change.search.clusters[0].nodes for words, remedy in helped.items() if words.endswith("nodes")]
    assert sizes
    assert sizes[0] >= times


def test_remedies_keep_the_budget_of_seconds() -> None:
    assert remedies(SEARCHES["one GPU"], Watch(lambda: 2.0, lambda: False, 0.0, 1.0)) == []
