"""From requests to problems: every default that was used is listed, every one that was not needed is not."""

from __future__ import annotations

from typing import Any

import pytest

from app.schemas.estimates import EstimateRequest
from app.schemas.examples import ESTIMATE, MEGATRON_STRATEGY, SEARCH
from app.schemas.searches import SearchRequest
from app.services.problems import ResolvedProblem, resolve_problem, search_problem
from cost_models.errors import InvalidInput
from cost_models.workload import FineTuning, Workload

LEAST = {"sequence_length": 2048, "global_batch_size": 64}
V100 = {"nodes": 1, "gpus_per_node": 8, "gpu": "v100-sxm2-32gb"}
LEARNED = {
    "layers": 2,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 4,
    "ffn_hidden_size": 256,
    "gated_mlp": False,
    "vocab_size": 1000,
    "tied_embeddings": True,
    "position_embeddings": "learned",
    "max_position_embeddings": 300,
}
FULL = {
    "precision": "fp8",
    "optimizer": "sgd",
    "attention": "eager",
    "fused_loss": True,
    "dropout": 0.1,
    "expert_imbalance": 1.5,
    "training_tokens": 1e12,
    "fine_tuning": {"method": "lora", "rank": 8, "target": "attention", "modules_to_save": ["head"]},
}


def resolve(**changes: Any) -> ResolvedProblem:
    request = EstimateRequest.model_validate(ESTIMATE | changes)
    return resolve_problem(request.model, request.cluster, request.workload)


def listed(assumptions: tuple[str, ...], about: str) -> list[str]:
    return [line for line in assumptions if line.startswith(about)]


class TestWorkload:
    def test_defaults_are_listed(self) -> None:
        resolved = resolve(workload=LEAST)
        assert resolved.problem.workload == Workload(sequence_length=2048, global_batch_size=64)
        assert listed(resolved.assumptions, "workload") == [
            "workload.precision left out: bf16",
            "workload.optimizer left out: adamw",
            "workload.attention left out: flash",
            "workload.fused_loss left out: false",
            "workload.dropout left out: 0",
            "workload.expert_imbalance left out: 1",
        ]

    def test_defaults_follow_the_gpu(self) -> None:
        resolved = resolve(workload=LEAST, cluster=V100)
        assert (resolved.problem.workload.precision, resolved.problem.workload.attention) == ("fp16", "eager")
        assert listed(resolved.assumptions, "workload")[:3:2] == [
            "workload.precision left out: fp16, because v100-sxm2-32gb has no bf16",
            "workload.attention left out: eager, because v100-sxm2-32gb has no flash attention kernel",
        ]

    @pytest.mark.parametrize(
        ("model", "positions"),
        [
            ({"preset": "gpt-2-xl"}, 1024),
            ({"preset": "gpt-3-175b"}, 2048),
            ({"preset": "bert-large"}, 512),
            ({"hf_config": {"model_type": "opt", "max_position_embeddings": 1000}}, 1000),
            ({"architecture": LEARNED}, 300),
        ],
    )
    def test_a_sequence_has_a_learned_position_for_each_token(self, model: dict[str, Any], positions: int) -> None:
        longest = LEAST | {"sequence_length": positions}
        assert resolve(model=model, workload=longest).problem.workload.sequence_length == positions
        with pytest.raises(InvalidInput) as refused:
            resolve(model=model, workload=longest | {"sequence_length": positions + 1})
        assert (refused.value.loc, refused.value.code) == (("workload", "sequence_length"), "too_large")

    def test_other_positions_go_on(self) -> None:
        long = LEAST | {"sequence_length": 1_000_000}
        rotary = LEARNED | {"position_embeddings": "rotary"}
        for model in ({"preset": "llama-2-7b"}, {"architecture": rotary}):
            assert resolve(model=model, workload=long).problem.workload.sequence_length == 1_000_000

    def test_what_is_said_is_no_assumption(self) -> None:
        resolved = resolve(workload=LEAST | FULL)
        assert listed(resolved.assumptions, "workload") == []
        assert resolved.problem.workload == Workload(
            sequence_length=2048,
            global_batch_size=64,
            precision="fp8",
            optimizer="sgd",
            attention="eager",
            fused_loss=True,
            dropout=0.1,
            expert_imbalance=1.5,
            training_tokens=1e12,
            fine_tuning=FineTuning("lora", 8, "attention", ("head",)),
        )

    def test_fine_tuning_has_defaults_too(self) -> None:
        resolved = resolve(workload=LEAST | {"fine_tuning": {"method": "lora"}})
        assert resolved.problem.workload.fine_tuning == FineTuning("lora", 16, "all-linear", ())
        assert listed(resolved.assumptions, "workload.fine_tuning") == [
            "workload.fine_tuning.rank left out: 16",
            "workload.fine_tuning.target left out: all-linear",
            "workload.fine_tuning.modules_to_save left out: none",
        ]


class TestSearch:
    def test_defaults_are_listed(self) -> None:
        request = SearchRequest.model_validate({name: SEARCH[name] for name in ("model", "cluster", "workload")})
        resolved = search_problem(request)
        search = resolved.problem
        assert (search.objective, search.memory_confidence, search.plans, search.seed) == ("step_time", 0.9, 10, 0)
        assert (search.trials, search.seconds, search.frameworks) == (128, 10.0, None)
        for line in (
            "objective left out: step_time",
            "memory_confidence left out: 0.9",
            "plans left out: 10",
            "seed left out: 0",
            "mode left out: analytical",
            "budget.trials left out: 128",
            "budget.seconds left out: 10",
            "frameworks left out: megatron-lm, deepspeed, fsdp2, and ddp where a replica fits one GPU",
        ):
            assert line in resolved.assumptions

    def test_everything_that_is_asked_for(self) -> None:
        request = SearchRequest.model_validate(
            SEARCH
            | {
                "objective": "pareto",
                "space": {"tensor_parallel_size": [8, 4], "recompute_modules": [["mlp"], []]},
                "nodes_options": [4, 8],
                "deadline_days": 30.0,
                "budget": {"trials": 7, "seconds": 2},
                "current": MEGATRON_STRATEGY,
                "mode": "analytical",
            }
        )
        resolved = search_problem(request)
        search = resolved.problem
        assert search.space == {"tensor_parallel_size": (8, 4), "recompute_modules": (("mlp",), ())}
        assert [cluster.nodes for cluster in search.clusters] == [4, 8]
        assert (search.objective, search.deadline_days) == ("pareto", 30.0)
        assert (search.trials, search.seconds) == (7, 2.0)
        assert search.current == MEGATRON_STRATEGY
        assert not any("left out" in line for line in resolved.assumptions if not line.startswith(("hf_", "w", "cl")))

    def test_a_cluster_size_that_cannot_be(self) -> None:
        cluster = {"nodes": 4, "gpus_per_node": 4, "gpu": "gb200-186gb", "nvlink_domain_gpus": 16}
        request = SearchRequest.model_validate(SEARCH | {"cluster": cluster, "nodes_options": [4, 5]})
        with pytest.raises(InvalidInput) as raised:
            search_problem(request)
        assert raised.value.loc == ("cluster", "nvlink_domain_gpus")
