"""What real searches find is what the schema of the answer says, and its strategies can be sent back."""

from __future__ import annotations

import pytest

from app.schemas.searches import SearchResult
from app.schemas.strategies import Strategy
from cost_models.workload import FineTuning, Workload
from search.problem import SearchProblem
from tests.search.problems import cluster, run, small_search

SEARCHES = {
    "pipelines as deep as the layers": small_search(
        space={"pipeline_parallel_size": (8,), "virtual_pipeline_size": (4,)}, frameworks=("megatron-lm",)
    ),
    "experts": small_search("mixtral-8x7b", clusters=(cluster(nodes=2),), trials=32),
    "nothing fits": small_search("llama-3-70b", trials=32),
    "adapters, front": small_search(
        objective="pareto",
        workload=Workload(sequence_length=2048, global_batch_size=16, fine_tuning=FineTuning(method="lora")),
        current={"framework": "fsdp2"},
    ),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_answers_are_as_the_schema_says(search: SearchProblem) -> None:
    body = run(search).as_dict()
    answer = SearchResult.model_validate(body)
    for plan in answer.plans:
        for alternative in plan.alternatives:
            Strategy.model_validate(alternative.strategy.model_dump())


def test_a_step_with_more_chunks_than_layers_has_no_layout() -> None:
    plans = run(SEARCHES["pipelines as deep as the layers"]).plans
    broken = [one for plan in plans for one in plan["alternatives"] if not one["strategy"]["layers_per_stage"]]
    assert broken
    assert all(one["strategy"]["layers_per_stage"] is None and not one["valid"] for one in broken)
