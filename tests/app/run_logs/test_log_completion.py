"""A log's run with what its uploader adds: complete, missing by name, or contradicting by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.run_logs.completion import complete
from app.run_logs.errors import ImportRefused
from app.run_logs.facts import LoggedRun
from app.run_logs.torchtitan import read_torchtitan
from tests.app.run_logs.excerpts import read_log

CLUSTER = {"gpus_per_node": 2, "gpu": "v100-sxm2-32gb"}


def run_of(name: str) -> LoggedRun:
    return read_log(name)[1][0]


def refusals(run: LoggedRun, context: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ImportRefused) as refused:
        complete(run, context, every_stage=False)
    return [(".".join(map(str, error.loc)), error.code) for error in refused.value.errors]


def test_a_complete_record() -> None:
    (record,) = complete(run_of("megatron_2021.log"), {"cluster": CLUSTER, "source": "me"}, every_stage=False)
    assert record["cluster"] == {"gpus_per_node": 2, "gpu": "v100-sxm2-32gb", "nodes": 2}  # 4 GPUs by the log
    assert record["source"] == "me"
    assert record["measured"] == {
        "peak_allocated_gib": 6.0,
        "peak_reserved_gib": 7.0,
        "pipeline_stage": 0,
        "step_seconds": 1.305,
    }


def test_every_stage() -> None:
    records = complete(run_of("megatron_2021.log"), {"cluster": CLUSTER}, every_stage=True)
    assert [record["measured"] for record in records] == [
        {"peak_allocated_gib": 6.0, "peak_reserved_gib": 7.0, "pipeline_stage": 0, "step_seconds": 1.305},
        {"peak_allocated_gib": 5120.5 / 1024, "peak_reserved_gib": 6.0, "pipeline_stage": 1},
    ]
    assert all(record["strategy"] == records[0]["strategy"] for record in records)


def test_what_is_missing_is_named() -> None:
    assert refusals(run_of("megatron_2021.log"), {}) == [
        ("context.cluster.nodes", "missing"),
        ("context.cluster.gpus_per_node", "missing"),
        ("context.cluster.gpu", "missing"),
    ]
    assert refusals(run_of("torchtune_bar.log"), {"cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "l4-24gb"}}) == [
        ("context.model", "missing"),
        ("context.workload.sequence_length", "missing"),
        ("context.workload.global_batch_size", "missing"),
        ("context.strategy.micro_batch_size", "missing"),
        ("context.strategy.activation_checkpointing", "missing"),
        ("context.workload.fine_tuning", "missing"),
    ]


def test_a_missing_dimension_of_the_model_is_named() -> None:
    run = run_of("megatron_version1.log")
    context = {"cluster": {"nodes": 1, "gpu": "v100-sxm2-32gb"}}
    assert refusals(run, context) == [("context.model.architecture.vocab_size", "missing")]
    (record,) = complete(run, context | {"model": {"architecture": {"vocab_size": 50257}}}, every_stage=False)
    assert record["model"]["architecture"]["vocab_size"] == 50257
    assert record["cluster"]["gpus_per_node"] == 8


def test_what_nobody_knows_may_be_listed() -> None:
    run = run_of("torchtitan_two.log")
    context = {"cluster": {"nodes": 1}}
    assert refusals(run, context) == [("context.strategy.zero_stage", "missing")]
    (record,) = complete(run, context | {"unknown": ["zero_stage"]}, every_stage=False)
    assert record["unknown"] == ["zero_stage"]
    assert "zero_stage" not in record["strategy"]


def test_unknown_does_not_excuse_what_a_run_record_needs() -> None:
    run = run_of("torchtune.log")
    context = {"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "h100-sxm5-80gb"}, "model": {"preset": "llama-3-8b"}}
    assert refusals(run, context | {"unknown": ["global_batch_size"]}) == [
        ("context.workload.global_batch_size", "missing")
    ]


@pytest.mark.parametrize(
    ("context", "place", "message"),
    [
        (
            {"strategy": {"tensor_parallel_size": 4}},
            "context.strategy.tensor_parallel_size",
            "the file says 2, the context 4",
        ),
        ({"workload": {"precision": "bf16"}}, "context.workload.precision", "the file says 'fp16', the context 'bf16'"),
        ({"measured": {"step_seconds": 1.0}}, "context.measured.step_seconds", "the file says 1.305, the context 1.0"),
        (
            {"cluster": CLUSTER | {"nodes": 3}},
            "context.cluster.nodes",
            "the log says 4 GPUs in all, the cluster has 3 × 2",
        ),
        (
            {"cluster": CLUSTER | {"gpus_per_node": 3}},
            "context.cluster.gpus_per_node",
            "the log says 4 GPUs in all, which 3 a node do not divide",
        ),
        ({"model": {"preset": "gpt-2-xl"}}, "context.model.layers", "the file says 12, the context 48"),
        (
            {"model": {"architecture": {"layers": 13}}},
            "context.model.architecture.layers",
            "the file says 12, the context 13",
        ),
        (
            {"strategy": {"sequence_parallel": 0}},
            "context.strategy.sequence_parallel",
            "the file says False, the context 0",
        ),
    ],
)
def test_contradictions_name_both_values(context: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        complete(run_of("megatron_2021.log"), {"cluster": CLUSTER} | context, every_stage=False)
    found = {".".join(map(str, error.loc)): (error.code, error.message) for error in refused.value.errors}
    assert found[place] == ("contradiction", message)


def test_what_both_say_alike_is_no_contradiction() -> None:
    context = {
        "cluster": CLUSTER | {"nodes": 2},
        "strategy": {"tensor_parallel_size": 2},
        "measured": {"step_seconds": 1.305, "peak_device_gib": 9.0},
    }
    (record,) = complete(run_of("megatron_2021.log"), context, every_stage=False)
    assert record["measured"]["peak_device_gib"] == 9.0


def test_a_cluster_preset_stands_for_its_gpus() -> None:
    run = run_of("torchtitan_two.log")
    context = {"cluster": {"preset": "dgx-h100"}, "strategy": {"zero_stage": 3}}
    (record,) = complete(run, context, every_stage=False)
    assert record["cluster"] == {"preset": "dgx-h100", "nodes": 1}
    places = refusals(run, context | {"cluster": {"preset": "dgx-a100"}})
    assert ("context.cluster.preset", "contradiction") in places


def test_a_model_that_agrees_may_be_named() -> None:
    run = run_of("torchtitan_two.log")
    context = {"cluster": {"nodes": 1}, "strategy": {"zero_stage": 3}, "model": {"preset": "llama-3-8b"}}
    (record,) = complete(run, context, every_stage=False)
    assert record["model"] == {"preset": "llama-3-8b"}


@pytest.mark.parametrize("section", ["model", "cluster", "workload", "strategy", "measured", "software"])
def test_sections_are_objects(section: str) -> None:
    assert (f"context.{section}", "object_type") in refusals(run_of("megatron_2021.log"), {section: 5})


def test_a_device_that_the_catalog_does_not_have_is_named() -> None:
    lines = [
        "[titan] 2025-08-21 10:15:00,966 - root - INFO - CUDA capacity: NVIDIA H100 with 95.00GiB memory\n",
        "[titan] 2025-08-21 10:15:28,674 - root - INFO - step:  1  loss: 12.0  memory: 53.94GiB(56.78%)  tps: 296\n",
    ]
    with pytest.raises(ImportRefused) as refused:
        complete(next(read_torchtitan(lines)), {}, every_stage=False)
    (message,) = [error.message for error in refused.value.errors if error.loc == ("context", "cluster", "gpu")]
    assert "'NVIDIA H100'" in message


def test_a_run_without_a_figure_asks_for_one() -> None:
    run = read_log("megatron_2026.log")[1][1]
    without = type(run)(**{**{name: getattr(run, name) for name in run.__dataclass_fields__}, "step_seconds": None})
    context = {"cluster": {"nodes": 4, "gpu": "b200-sxm-180gb"}}
    assert refusals(without, context) == [("context.measured", "missing")]


def test_one_gpu_is_one_node() -> None:
    run = replace(run_of("megatron_2021.log"), gpus=1)
    (record,) = complete(run, {"cluster": {"gpu": "l4-24gb"}}, every_stage=False)
    assert record["cluster"] == {"gpu": "l4-24gb", "nodes": 1, "gpus_per_node": 1}


def test_what_the_log_itself_contradicts_is_asked_for_with_the_reason() -> None:
    run = run_of("megatron_2021.log")
    doubts = {("strategy", "pipeline_parallel_size"): "two lines differ"}
    sections = {**run.sections, "strategy": {k: v for k, v in run.sections["strategy"].items() if k[:8] != "pipeline"}}
    with pytest.raises(ImportRefused) as refused:
        complete(replace(run, sections=sections, doubts=doubts), {"cluster": CLUSTER}, every_stage=False)
    [error] = refused.value.errors
    assert error.loc == ("context", "strategy", "pipeline_parallel_size")
    assert error.message.startswith("two lines differ; put it into context.strategy.pipeline_parallel_size")
