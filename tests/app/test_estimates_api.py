"""`estimates`: one answer each, in order, in the words and units of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from app.main import create_app
from app.schemas import strategies as choices
from app.schemas.examples import ESTIMATE, FSDP_STRATEGY, MEGATRON_STRATEGY
from app.settings import Settings
from cost_models.codes import VIOLATIONS, WARNINGS

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v2", "gpt-2-xl", "bert-large")
LEARNED_POSITIONS = {"gpt-2-xl": 1024, "bert-large": 512}


@pytest.fixture
def validator(http_app: FastAPI) -> Draft202012Validator:
    """Checks an answer against what the OpenAPI description promises."""
    schemas = http_app.openapi()["components"]["schemas"]
    return Draft202012Validator({"$ref": "#/components/schemas/EstimateAnswer", "components": {"schemas": schemas}})


@pytest.fixture(scope="module")
def shared_client(migrated_sqlite: Path) -> Iterator[TestClient]:
    """One service for many examples; estimates leave nothing behind."""
    with TestClient(create_app(Settings(database_url=f"sqlite:///{migrated_sqlite}", rate_limit=""))) as client:
        yield client


def estimate(client: TestClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/estimates", json=ESTIMATE | changes)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestAnswer:
    def test_is_as_described(self, client: TestClient, validator: Draft202012Validator) -> None:
        invalid = MEGATRON_STRATEGY | {"tensor_parallel_size": 3}
        for detail in ("full", "summary"):
            answer = estimate(client, detail=detail, strategies=[MEGATRON_STRATEGY, invalid, FSDP_STRATEGY])
            validator.validate(answer)
            assert [item["valid"] for item in answer["estimates"]] == [True, False, True]

    def test_keeps_the_order(self, client: TestClient) -> None:
        sizes = [8, 1, 4, 2]
        strategies = [{"framework": "megatron-lm", "tensor_parallel_size": size} for size in sizes]
        answers = estimate(client, strategies=strategies)["estimates"]
        assert [item["strategy"]["tensor_parallel_size"] for item in answers] == sizes

    def test_strategies_are_resolved(self, client: TestClient) -> None:
        strategy = estimate(client, strategies=[MEGATRON_STRATEGY])["estimates"][0]["strategy"]
        assert set(strategy) == set(choices.Strategy.model_fields)
        assert strategy["data_parallel_size"] == 4
        assert strategy["layers_per_stage"] == [20, 20, 20, 20]
        assert strategy["sequence_parallel"] is True

    def test_parts_add_up(self, client: TestClient) -> None:
        for item in estimate(client)["estimates"]:
            memory, time = item["memory"], item["time"]
            assert sum(memory["breakdown_gib"].values()) == pytest.approx(memory["peak_gib"], abs=1e-4)
            assert sum(time["breakdown_seconds"].values()) == pytest.approx(time["step_seconds"], rel=1e-4)
            assert memory["peak_gib"] == max(stage["peak_gib"] for stage in memory["stages"])
            assert memory["capacity_gib"] == pytest.approx(79.2, abs=0.2)

    def test_summary(self, client: TestClient) -> None:
        full = estimate(client)["estimates"]
        short = estimate(client, detail="summary")["estimates"]
        assert short == [
            {
                "valid": item["valid"],
                "fits": item["fits"],
                "step_seconds": item["time"]["step_seconds"],
                "peak_gib": item["memory"]["peak_gib"],
                "violations": [],
            }
            for item in full
        ]

    def test_a_price_makes_a_cost(self, client: TestClient) -> None:
        cluster = {"nodes": 8, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "usd_per_gpu_hour": 2.5}
        cost = estimate(client, cluster=cluster)["estimates"][0]["cost"]
        assert cost["usd"] == pytest.approx(2.5 * cost["gpu_hours"])
        assert cost["gpu_hours"] == pytest.approx(cost["days"] * 24 * 64, rel=1e-4)

    def test_defaults_are_listed(self, client: TestClient) -> None:
        body = {name: ESTIMATE[name] for name in ("model", "cluster", "strategies")}
        body["workload"] = {"sequence_length": 8192, "global_batch_size": 128}
        assumptions = client.post("/v1/estimates", json=body).json()["assumptions"]
        for about in ("memory_confidence", "detail", "learned", "workload.precision", "cluster preset", "hf_config"):
            assert any(line.startswith(about) for line in assumptions), about
        assert any("data_parallel_size" in line for line in assumptions)

    def test_twenty_thousand_in_one_request(self, client: TestClient) -> None:
        sizes = [2**power for power in range(7)]
        strategies = [
            {"framework": "megatron-lm", "tensor_parallel_size": sizes[number % 7], "micro_batch_size": 1 + number % 5}
            for number in range(20_000)
        ]
        answers = estimate(client, strategies=strategies, detail="summary")["estimates"]
        assert len(answers) == 20_000
        assert answers[35:70] == answers[:35]


class TestViolations:
    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"tensor_parallel_size": 3}, "degrees_do_not_multiply_to_gpus"),
            ({"data_parallel_size": 64}, "degrees_do_not_multiply_to_gpus"),
            ({"micro_batch_size": 3}, "batch_not_divisible"),
            (
                {"tensor_parallel_size": 64, "pipeline_parallel_size": 1, "data_parallel_size": 1},
                "kv_heads_not_divisible",
            ),
            ({"layers_per_stage": [20, 20, 20, 21]}, "layers_not_divisible"),
            ({"virtual_pipeline_size": 21}, "fewer_layers_than_chunks"),
            ({"pipeline_parallel_size": 1, "virtual_pipeline_size": 2}, "virtual_needs_pipeline"),
            ({"expert_parallel_size": 2}, "expert_unsupported"),
            ({"framework": "ddp"}, "tensor_unsupported"),
            ({"framework": "deepspeed", "zero_stage": 3}, "zero_stage_unsupported"),
        ],
    )
    def test_are_named(self, client: TestClient, change: dict[str, Any], code: str) -> None:
        item = estimate(client, strategies=[MEGATRON_STRATEGY | change])["estimates"][0]
        assert item["valid"] is False
        assert code in [violation["code"] for violation in item["violations"]]
        assert all(violation["message"] for violation in item["violations"])
        assert [item[name] for name in ("fits", "memory", "time", "throughput", "cost")] == [None] * 5

    @pytest.mark.parametrize(("peaks", "is_valid"), [({"bf16": 1000}, True), ({"fp16": 1000}, False), ({}, False)])
    def test_fp8_needs_bf16_beside_it(self, client: TestClient, peaks: dict[str, int], is_valid: bool) -> None:
        gpu = {
            "name": "x",
            "memory_gib": 80,
            "memory_gb_per_s": 3000,
            "peak_tflops": {"fp8": 2000} | peaks,
            "tdp_watts": 700,
        }
        cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": gpu, "intra_node": {"kind": "nvlink", "gb_per_s": 450}}
        workload = {"sequence_length": 1024, "global_batch_size": 64, "precision": "fp8"}
        item = estimate(
            client,
            model={"preset": "gpt-2-xl"},
            cluster=cluster,
            workload=workload,
            strategies=[{"framework": "fsdp2"}],
        )["estimates"][0]
        assert item["valid"] is is_valid
        if not is_valid:
            assert [violation["code"] for violation in item["violations"]] == ["precision_unsupported_by_gpu"]

    def test_every_broken_rule_is_named(self, client: TestClient) -> None:
        strategy = {"framework": "ddp", "tensor_parallel_size": 3, "zero_stage": 3, "micro_batch_size": 7}
        codes = {
            violation["code"] for violation in estimate(client, strategies=[strategy])["estimates"][0]["violations"]
        }
        assert {"tensor_unsupported", "zero_stage_unsupported", "degrees_do_not_multiply_to_gpus"} <= codes


def literal(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(kind))


DEGREES = st.sampled_from([1, 1, 2, 2, 2, 4, 4, 8, 8, 3, 16, 64, 10**6])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **{name: DEGREES for name in choices.Strategy.model_fields if name.endswith("_size")},
    "sequence_parallel": st.booleans(),
    "pipeline_schedule": literal(choices.PipelineSchedule),
    "layers_per_stage": st.lists(st.integers(0, 40), min_size=1, max_size=8),
    "context_parallel_kind": literal(choices.ContextParallelKind),
    "zero_stage": st.integers(0, 3),
    "activation_checkpointing": literal(choices.Checkpointing),
    "recompute_modules": st.lists(literal(choices.RecomputeModule), max_size=3),
    "checkpointed_layers": st.integers(0, 10_000),
    "offload": st.sampled_from(["none", "optimizer", "optimizer-and-parameters", "nvme"]),
    "offload_fraction": st.floats(0, 1),
    "precision": st.sampled_from(["bf16", "fp16", "fp8", "fp32"]),
    "fp8_recipe": literal(choices.Fp8Recipe),
    "parameter_dtype": st.sampled_from(["fp32", "bf16", "fp16", "fp8"]),
    "gradient_dtype": literal(choices.StateDtype),
    "optimizer_state_dtype": literal(choices.StateDtype),
    "kernels": literal(choices.Kernels),
    "checkpoint_loading": literal(choices.CheckpointLoading),
    "checkpoint_saving": literal(choices.CheckpointSaving),
    **{
        name: st.booleans()
        for name in (
            "overlap_communication",
            "compile",
            "cuda_graphs",
            "gradient_as_bucket_view",
            "expandable_segments",
        )
    },
}


def some_fields(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"framework": literal(choices.Framework)} | {name: FIELDS[name] for name in names})


# A few fields at a time: with all of them at once hardly any strategy breaks no rule.
STRATEGIES = st.lists(st.sampled_from(sorted(FIELDS)), max_size=6, unique=True).flatmap(some_fields)
WORKLOADS = st.fixed_dictionaries(
    {"sequence_length": st.sampled_from([1, 128, 4096, 10**8]), "global_batch_size": st.sampled_from([1, 64, 10**7])},
    optional={
        "precision": st.sampled_from(["bf16", "fp16", "fp8", "fp32"]),
        "optimizer": st.sampled_from(["adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum"]),
        "attention": st.sampled_from(["flash", "eager"]),
        "fused_loss": st.booleans(),
        "dropout": st.floats(0, 0.9),
        "expert_imbalance": st.floats(1, 10),
        "training_tokens": st.floats(1, 1e15),
        "fine_tuning": st.sampled_from([{"method": "lora"}, {"method": "lora", "target": "attention-qv", "rank": 8}]),
    },
)
CLUSTERS = st.sampled_from(
    [
        {"preset": "dgx-h100", "nodes": 8},
        {"preset": "gb300-nvl72", "nodes": 18},
        {"preset": "mi300x-node", "nodes": 1},
        {"nodes": 1, "gpus_per_node": 1, "gpu": "rtx-4090-24gb"},
        {"nodes": 2, "gpus_per_node": 8, "gpu": "v100-sxm2-16gb", "gpu_free_memory_gib": 1},
    ]
)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=st.sampled_from(MODELS),
    cluster=CLUSTERS,
    workload=WORKLOADS,
    strategies=st.lists(STRATEGIES, min_size=1, max_size=20),
)
def test_whatever_is_asked_is_answered_or_refused_by_name(
    shared_client: TestClient, model: str, cluster: Any, workload: Any, strategies: Any
) -> None:
    length = min(workload["sequence_length"], LEARNED_POSITIONS.get(model, workload["sequence_length"]))
    body = {
        "model": {"preset": model},
        "cluster": cluster,
        "workload": workload | {"sequence_length": length},
        "strategies": strategies,
    }
    answer = shared_client.post("/v1/estimates", json=body)
    assert answer.status_code == 200, answer.text
    assert "NaN" not in answer.text
    for item in json.loads(answer.text)["estimates"]:
        assert item["valid"] == (item["violations"] == [])
        assert {violation["code"] for violation in item["violations"]} <= set(VIOLATIONS)
        assert {warning["code"] for warning in item["warnings"]} <= set(WARNINGS)
        if item["valid"]:
            assert item["time"]["step_seconds"] > 0
            assert item["memory"]["peak_gib"] > 0
            assert 0 < item["throughput"]["mfu"] < 1
