"""Bad input: a 422 problem that names the field and the rule, found when it is sent, not when it is worked on."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.schemas.examples import ESTIMATE, SEARCH

SPEC = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}
GPU = {
    "name": "x",
    "memory_gib": 80,
    "memory_gb_per_s": 2000,
    "peak_tflops": {"bf16": 500},
    "tdp_watts": 300,
}
ARCHITECTURE = {
    "layers": 32,
    "hidden_size": 4096,
    "attention_heads": 32,
    "key_value_heads": 8,
    "ffn_hidden_size": 14336,
    "gated_mlp": True,
    "vocab_size": 128256,
    "tied_embeddings": False,
}

Path = tuple[str | int, ...]
Case = tuple[Path, Any, Path, str]

MODEL: list[Case] = [
    (("model",), {}, ("model",), "exactly_one"),
    (("model",), {"preset": "llama-3-8b", "hf_config": {}}, ("model",), "exactly_one"),
    (("model",), {"preset": None}, ("model",), "exactly_one"),
    (("model",), {"preset": "llama-9"}, ("model", "preset"), "unknown_preset"),
    (("model",), {"preset": 7}, ("model", "preset"), "string_type"),
    (("model",), {"presets": "llama-3-8b"}, ("model", "presets"), "extra_forbidden"),
    (("model",), {"hf_config": []}, ("model", "hf_config"), "dict_type"),
    (
        ("model",),
        {"architecture": ARCHITECTURE | {"layers": 0}},
        ("model", "architecture", "layers"),
        "greater_than_equal",
    ),
    (("model",), {"architecture": ARCHITECTURE | {"layers": True}}, ("model", "architecture", "layers"), "int_type"),
    (("model",), {"architecture": ARCHITECTURE | {"depth": 1}}, ("model", "architecture", "depth"), "extra_forbidden"),
    (
        ("model",),
        {"architecture": ARCHITECTURE | {"key_value_heads": 7}},
        ("model", "architecture", "key_value_heads"),
        "not_divisible",
    ),
]
CLUSTER: list[Case] = [
    (
        ("cluster",),
        SPEC | {"intra_node": {"topology": "GPU0 GPU1"}},
        ("cluster", "intra_node", "topology"),
        "topology_unreadable",
    ),
    (("cluster",), SPEC | {"intra_node": {"topology": 8}}, ("cluster", "intra_node", "topology"), "string_type"),
    (("cluster",), {"nodes": 8}, ("cluster", "gpus_per_node"), "missing"),
    (("cluster",), {"preset": "dgx-h100"}, ("cluster", "nodes"), "missing"),
    (("cluster",), {"preset": "dgx-h900", "nodes": 8}, ("cluster", "preset"), "unknown_preset"),
    (("cluster",), {"preset": "dgx-h100", "nodes": -1}, ("cluster", "nodes"), "greater_than_equal"),
    (("cluster",), {"preset": "dgx-h100", "nodes": 10**9}, ("cluster", "nodes"), "less_than_equal"),
    (("cluster",), {"preset": "dgx-h100", "nodes": 8, "gpu": "h100-sxm5-80gb"}, ("cluster", "gpu"), "extra_forbidden"),
    (("cluster",), SPEC | {"gpu": "h900"}, ("cluster", "gpu"), "unknown_gpu"),
    (("cluster",), SPEC | {"gpu": ["a100-sxm4-80gb", "h100-sxm5-80gb"]}, ("cluster", "gpu"), "mixed_gpus_unsupported"),
    (("cluster",), SPEC | {"gpu": GPU | {"memory_gib": 0}}, ("cluster", "gpu", "memory_gib"), "greater_than_equal"),
    (("cluster",), SPEC | {"gpu": GPU | {"cores": 1}}, ("cluster", "gpu", "cores"), "extra_forbidden"),
    (("cluster",), SPEC | {"intra_node": {"kind": "wire"}}, ("cluster", "intra_node", "kind"), "literal_error"),
    (("cluster",), SPEC | {"usd_per_gpu_hour": -2.5}, ("cluster", "usd_per_gpu_hour"), "greater_than_equal"),
    (("cluster",), SPEC | {"gpu_free_memory_gib": 1e-300}, ("cluster", "gpu_free_memory_gib"), "greater_than_equal"),
    (("cluster",), SPEC | {"host": {"nvme_gib": 1e-9}}, ("cluster", "host", "nvme_gib"), "out_of_range"),
    (("cluster",), SPEC | {"gpu_free_memory_gib": 1000}, ("cluster", "gpu_free_memory_gib"), "too_large"),
]
WORKLOAD: list[Case] = [
    (("workload", "sequence_length"), None, ("workload", "sequence_length"), "missing"),
    (("workload", "sequence_length"), 0, ("workload", "sequence_length"), "greater_than_equal"),
    (("workload", "sequence_length"), 10**18, ("workload", "sequence_length"), "less_than_equal"),
    (("workload", "global_batch_size"), "128", ("workload", "global_batch_size"), "int_type"),
    (("workload", "global_batch_size"), True, ("workload", "global_batch_size"), "int_type"),
    (("workload", "global_batch_size"), 128.5, ("workload", "global_batch_size"), "int_type"),
    (("workload", "precision"), "fp12", ("workload", "precision"), "literal_error"),
    (("workload", "dropout"), -0.1, ("workload", "dropout"), "greater_than_equal"),
    (("workload", "dropout"), "NaN", ("workload", "dropout"), "float_type"),
    (("workload", "batch"), 1, ("workload", "batch"), "extra_forbidden"),
    (
        ("workload", "fine_tuning"),
        {"method": "lora", "rank": 0},
        ("workload", "fine_tuning", "rank"),
        "greater_than_equal",
    ),
]
SEARCH_ONLY: list[Case] = [
    (("mode",), "guessed", ("mode",), "literal_error"),
    (("objective",), "speed", ("objective",), "literal_error"),
    (("objective",), "cost", ("objective",), "price_missing"),
    (("memory_confidence",), 1.0, ("memory_confidence",), "less_than"),
    (("memory_confidence",), 0.4, ("memory_confidence",), "greater_than_equal"),
    (("budget", "trials"), 0, ("budget", "trials"), "greater_than_equal"),
    (("budget", "seconds"), 0, ("budget", "seconds"), "greater_than_equal"),
    (("plans",), 101, ("plans",), "less_than_equal"),
    (("seed",), -1, ("seed",), "greater_than_equal"),
    (("frameworks",), [], ("frameworks",), "too_short"),
    (("frameworks",), ["horovod"], ("frameworks", 0), "literal_error"),
    (("frameworks",), ["ddp", "ddp"], ("frameworks",), "not_distinct"),
    (("space",), {"tensor_parallel_size": []}, ("space", "tensor_parallel_size"), "too_short"),
    (("space",), {"tensor_parallel_size": [0]}, ("space", "tensor_parallel_size", 0), "greater_than_equal"),
    (("space",), {"tensor_parallel_size": 8}, ("space", "tensor_parallel_size"), "list_type"),
    (("space",), {"tp": [1]}, ("space", "tp"), "extra_forbidden"),
    (("space",), {"framework": ["ddp"]}, ("space", "framework"), "empty"),
    (("current",), {"tensor_parallel_size": 2}, ("current", "framework"), "missing"),
    (("nodes_options",), [], ("nodes_options",), "too_short"),
    (("deadline_days",), 0, ("deadline_days",), "greater_than_equal"),
    (("labels",), {"a b": "c"}, ("labels", "a b", "[key]"), "string_pattern_mismatch"),
    (("labels",), {"a": 1}, ("labels", "a"), "string_type"),
    (("label",), {}, ("label",), "extra_forbidden"),
]
ESTIMATE_ONLY: list[Case] = [
    (("strategies",), [], ("strategies",), "too_short"),
    (("strategies",), {}, ("strategies",), "list_type"),
    (("strategies", 1, "framework"), None, ("strategies", 1, "framework"), "literal_error"),
    (("strategies", 1, "zero_stage"), 4, ("strategies", 1, "zero_stage"), "less_than_equal"),
    (("strategies", 1, "tensor_parallel_size"), 0, ("strategies", 1, "tensor_parallel_size"), "greater_than_equal"),
    (("strategies", 1, "tensor_parallel_size"), 10**12, ("strategies", 1, "tensor_parallel_size"), "less_than_equal"),
    (("strategies", 1, "sequence_parallel"), 1, ("strategies", 1, "sequence_parallel"), "bool_type"),
    (("strategies", 1, "layers_per_stage"), [40, -1], ("strategies", 1, "layers_per_stage", 1), "greater_than_equal"),
    (("strategies", 1, "tp"), 2, ("strategies", 1, "tp"), "extra_forbidden"),
    (("detail",), "short", ("detail",), "literal_error"),
    (("learned",), 1, ("learned",), "bool_type"),
]


def changed(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    body = deepcopy(body)
    target: Any = body
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return body


def check(client: TestClient, address: str, body: dict[str, Any], loc: Path, code: str) -> None:
    answer = client.post(address, json=body)
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (tuple(problem["errors"][0]["loc"]), problem["errors"][0]["code"]) == (("body", *loc), code)
    assert problem["errors"][0]["message"] in problem["detail"]
    assert problem["type"] == "urn:paraplan:problem:invalid-request"
    assert problem["instance"] == address


@pytest.mark.parametrize(("path", "value", "loc", "code"), [*MODEL, *CLUSTER, *WORKLOAD, *SEARCH_ONLY])
def test_searches(client: TestClient, path: Path, value: Any, loc: Path, code: str) -> None:
    check(client, "/v1/searches", changed(SEARCH, path, value), loc, code)
    assert client.get("/v1/searches").json()["items"] == []


@pytest.mark.parametrize(("path", "value", "loc", "code"), [*MODEL, *CLUSTER, *WORKLOAD, *ESTIMATE_ONLY])
def test_estimates(client: TestClient, path: Path, value: Any, loc: Path, code: str) -> None:
    check(client, "/v1/estimates", changed(ESTIMATE, path, value), loc, code)


@pytest.mark.parametrize("field", ["model", "cluster", "workload"])
@pytest.mark.parametrize(("address", "body"), [("/v1/searches", SEARCH), ("/v1/estimates", ESTIMATE)])
def test_required_fields(client: TestClient, address: str, body: dict[str, Any], field: str) -> None:
    check(client, address, {name: value for name, value in body.items() if name != field}, (field,), "missing")


def test_a_deadline_needs_training_tokens(client: TestClient) -> None:
    body = changed(SEARCH | {"deadline_days": 30}, ("workload", "training_tokens"), None)
    check(client, "/v1/searches", body, ("deadline_days",), "training_tokens_missing")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize(
    ("template", "loc"),
    [
        ('{"model": {"hf_config": {"model_type": "llama", "rope_theta": %s}}}', ["body", "model", "hf_config"]),
        ('{"model": {"hf_config": {"a": [{"b": %s}]}}}', ["body", "model", "hf_config"]),
    ],
)
def test_numbers_must_be_finite(client: TestClient, template: str, loc: list[str], number: str) -> None:
    answer = client.post("/v1/models/inspect", content=template % number, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert [(error["loc"], error["code"]) for error in answer.json()["errors"]] == [(loc, "finite_number")]


@pytest.mark.parametrize("field", ["dropout", "training_tokens", "expert_imbalance"])
def test_workload_numbers_must_be_finite(client: TestClient, field: str) -> None:
    content = (
        '{"model": {"preset": "llama-3-8b"}, "cluster": {"preset": "dgx-h100", "nodes": 1}, '
        f'"workload": {{"sequence_length": 8192, "global_batch_size": 8, "{field}": NaN}}}}'
    )
    answer = client.post("/v1/searches", content=content, headers={"Content-Type": "application/json"})
    assert [(error["loc"], error["code"]) for error in answer.json()["errors"]] == [
        (["body", "workload", field], "finite_number")
    ]


@pytest.mark.parametrize("text", ["\\ud800", "a\\u0000b"])
def test_text_must_be_storable(client: TestClient, text: str) -> None:
    content = f'{{"model": {{"hf_config": {{"_name_or_path": "{text}"}}}}}}'
    answer = client.post("/v1/models/inspect", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["code"] == "string_unicode"


@pytest.mark.parametrize("depth", [40, 300, 940, 2000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_has_an_end(client: TestClient, depth: int, opening: str, closing: str) -> None:
    content = f'{{"model": {{"hf_config": {{"model_type": "llama", "x": {opening * depth}1{closing * depth}}}}}}}'
    answer = client.post("/v1/models/inspect", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["code"] in ("too_deep", "json_invalid")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nul", b"\xff", b'{"a": 1e', b"[" * 100_000, b'{"model": ' + b"9" * 5000 + b"}", b"[]", b"1", b"null"],
)
def test_bodies_that_are_no_object(client: TestClient, content: bytes) -> None:
    answer = client.post("/v1/models/inspect", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"][0] == "body"


def test_one_answer_names_many_errors_but_not_all_of_twenty_thousand(client: TestClient) -> None:
    answer = client.post("/v1/estimates", json=ESTIMATE | {"strategies": [{"framework": "x"}] * 20_000})
    problem = answer.json()
    assert len(problem["errors"]) == 100
    assert problem["detail"].endswith("(and 19999 more)")


def test_more_strategies_than_one_request_may_have(client: TestClient) -> None:
    body = ESTIMATE | {"strategies": [{"framework": "ddp"}] * 20_001}
    check(client, "/v1/estimates", body, ("strategies",), "too_long")
