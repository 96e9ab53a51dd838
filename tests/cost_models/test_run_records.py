"""Runs are priced as the service would price them: what a record leaves out has the service's default."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.models import load_model
from cost_models.run_records import record_problem, record_strategy

DENSE: dict[str, Any] = {
    "model": {"preset": "gpt-2-xl"},
    "workload": {"sequence_length": 1024, "global_batch_size": 8},
    "strategy": {"framework": "ddp"},
}


@pytest.mark.parametrize(
    ("gpu", "precision", "attention"),
    [("h100-sxm5-80gb", "bf16", "flash"), ("v100-sxm2-32gb", "fp16", "eager"), ("t4-16gb", "fp16", "eager")],
)
def test_precision_and_attention_are_what_the_gpu_can_do(gpu: str, precision: str, attention: str) -> None:
    record = DENSE | {"cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": gpu}}
    workload = record_problem(record).workload
    assert (workload.precision, workload.attention) == (precision, attention)
    assert record_strategy(record) == {"framework": "ddp"}


def test_what_is_stated_is_kept() -> None:
    workload = DENSE["workload"] | {"precision": "fp32", "attention": "eager"}
    record = DENSE | {"cluster": {"preset": "dgx-h100", "nodes": 2}, "workload": workload}
    problem = record_problem(record)
    assert (problem.workload.precision, problem.workload.attention) == ("fp32", "eager")
    assert problem.cluster.gpus == 16
    assert record_strategy(record) == {"framework": "ddp", "precision": "fp32"}
    assert record_strategy(record | {"strategy": {"framework": "ddp", "precision": "bf16"}})["precision"] == "bf16"


def test_images_have_as_many_tokens_as_patches() -> None:
    record = DENSE | {
        "model": {"preset": "vit-h"},
        "cluster": {"preset": "dgx-a100", "nodes": 1},
        "workload": {"global_batch_size": 64},
    }
    assert record_problem(record).workload.sequence_length == load_model("vit-h").sequence_length == 257


def test_adapters() -> None:
    workload = DENSE["workload"] | {"fine_tuning": {"method": "lora", "modules_to_save": ["head"]}}
    record = DENSE | {"cluster": {"preset": "dgx-h100", "nodes": 1}, "workload": workload}
    adapters = record_problem(record).workload.fine_tuning
    assert adapters is not None
    assert (adapters.rank, adapters.target, adapters.modules_to_save) == (16, "all-linear", ("head",))
