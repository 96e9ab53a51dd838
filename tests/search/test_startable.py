"""Every plan that is ranked by default can be started by a launch target of its framework."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.workload import FineTuning, Workload
from search.evaluator import Evaluator
from search.launch.job import LaunchJob, NotExpressible
from search.launch.targets import TARGETS, write
from search.problem import SearchProblem
from search.startable import EXCLUSIONS, startable
from tests.search.problems import cluster, run, small_search

SEARCHES = {
    "dense": small_search("llama-3-8b", clusters=(cluster(nodes=2),)),
    "short of memory": small_search("llama-3-70b", clusters=(cluster("dgx-a100", nodes=2),)),
    "fp8": small_search(
        "llama-3-8b", workload=Workload(sequence_length=8192, global_batch_size=32, precision="fp8"), trials=32
    ),
    "experts": small_search("qwen3-30b-a3b", clusters=(cluster(nodes=2),), trials=32),
    "experts with biases": small_search(
        "gpt-oss-20b", workload=Workload(sequence_length=2048, global_batch_size=16), objective="pareto", trials=32
    ),
    "adapters": small_search(
        "llama-2-70b",
        workload=Workload(sequence_length=4096, global_batch_size=32, fine_tuning=FineTuning(method="lora")),
    ),
    "adapters in fp8": small_search(
        "llama-3-70b",
        workload=Workload(
            sequence_length=4096, global_batch_size=32, precision="fp8", fine_tuning=FineTuning(method="lora")
        ),
        plans=8,
        trials=32,
    ),
    "long": small_search("llama-3.1-8b", workload=Workload(sequence_length=65_536, global_batch_size=8)),
}
FRAMEWORKS = ("megatron-lm", "deepspeed", "fsdp2", "fsdp1", "ddp", "nanotron")
UNWRITTEN = {("nanotron", name) for name in ("experts", "experts with biases", "adapters", "adapters in fp8")}
"""nanotron's files are of dense models in Llama's shape."""


def targets_that_write(search: SearchProblem, plan: Any) -> list[str]:
    job = LaunchJob(model=search.model, cluster=search.clusters[0], workload=search.workload, strategy=plan["strategy"])
    written = []
    for target in TARGETS[plan["strategy"]["framework"]]:
        try:
            write(job, target)
        except NotExpressible:
            continue
        written.append(target)
    return written


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_ranked_plan_is_written_by_a_target(name: str, framework: str) -> None:
    if (framework, name) in UNWRITTEN:
        pytest.skip("nanotron's launch files are of dense models in Llama's shape")
    search = replace(SEARCHES[name], frameworks=(framework,))
    found = run(search)
    for plan in (*found.plans, *found.tight, *found.pareto):
        assert targets_that_write(search, plan), plan["strategy"]


STRATEGIES: dict[int, dict[str, Any]] = {
    0: {"pipeline_parallel_size": 2, "virtual_pipeline_size": 4, "checkpointed_layers": 5},
    1: {"zero_stage": 1, "parameter_dtype": "fp8", "precision": "fp8", "offload": "optimizer"},
    2: {"tensor_parallel_size": 2, "expert_tensor_parallel_size": 2},
    3: {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    4: {"context_parallel_size": 2, "tensor_parallel_size": 2},
    5: {"zero_stage": 3, "data_parallel_replicate_size": 2},
    6: {"pipeline_parallel_size": 2, "checkpointed_layers": 5},
    7: {"checkpointed_layers": 5},
    8: {"context_parallel_size": 2, "context_parallel_kind": "ring"},
    9: {"precision": "fp8"},
    10: {"tensor_parallel_size": 2},
    11: {"zero_stage": 0},
    12: {"pipeline_parallel_size": 2},
    13: {"data_parallel_replicate_size": 4},
}


@pytest.mark.parametrize("number", range(len(EXCLUSIONS)))
def test_what_cannot_be_started_is_searched_where_space_names_it(number: int) -> None:
    exclusion = EXCLUSIONS[number]
    tuning = FineTuning(method="lora") if exclusion.adapters_only else None
    search = small_search(
        "gpt-oss-20b" if exclusion.biased_experts_only else "llama-3-8b",
        clusters=(cluster(nodes=2),),
        workload=Workload(sequence_length=4096, global_batch_size=32, fine_tuning=tuning),
    )
    own = {"framework": exclusion.framework, "activation_checkpointing": "full", **STRATEGIES[number]}
    table = Evaluator(search).resolve_strategies(0, [own])
    assert exclusion.where(table, 2).all()
    assert not startable(search, 0, table).any()
    named = replace(search, space={exclusion.fields[0]: (table.value(exclusion.fields[0], 0),)})
    others = [one for one in EXCLUSIONS if one is not exclusion and one.framework == exclusion.framework]
    if not any(one.narrows(named) and one.where(table, 2).any() for one in others):
        assert startable(named, 0, table).all()
    sentences = run(replace(search, frameworks=(exclusion.framework,), trials=0)).assumptions
    assert any(exclusion.words in sentence for sentence in sentences)
