"""Activations of one layer against what PyTorch itself saves for its backward.

Recorded by `python -m benchmarks.torch_truth` on the meta device: blocks of transformers as they are (`eager`), blocks
as torchtitan composes them (`partly-fused`), Megatron-Core's local modules (`fused`), adapters by PEFT.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.cluster_input import resolve_cluster
from cost_models.hf_config import read_hf_config
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.stages import all_stages
from cost_models.workload import FineTuning, Workload
from tests.cost_models.problems import h100, resolved

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "torch_saved_bytes.json").read_text())
ROWS: list[dict[str, Any]] = RECORDED["rows"]
FRAMEWORKS = {"eager": "deepspeed", "partly-fused": "fsdp2", "fused": "megatron-lm"}
LARGEST_ERROR = 0.02
EXACT = 3e-4
"""What is left to scalars, random states and tables that a class makes anew in each layer."""


def saved(row: dict[str, Any]) -> float:
    """Our bytes of a middle layer."""
    autocast = row["weights"] == "autocast"
    precision = "bf16" if autocast else row["weights"]
    workload = Workload(
        sequence_length=row["sequence_length"],
        global_batch_size=8 * row["batch"],
        attention=row["attention"],
        dropout=row["dropout"],
        precision=precision,
        fine_tuning=FineTuning(**row["fine_tuning"]) if row["fine_tuning"] else None,
    )
    problem = Problem(read_hf_config(RECORDED["configs"][row["model"]]), resolve_cluster(h100(1)), workload)
    strategy = {
        "framework": "ddp" if autocast else FRAMEWORKS[row["kernels"]],
        "kernels": row["kernels"],
        "precision": precision,
        "micro_batch_size": row["batch"],
        "activation_checkpointing": row["checkpointing"],
        "compile": row["compile"],
    }
    table = resolved(problem, strategy)
    return float(estimate_memory(problem, table, all_stages(problem.model, table)).activation_bytes_per_layer[0])


def name(row: dict[str, Any]) -> str:
    tuning = row["fine_tuning"]
    fields = {**row, "fine_tuning": tuning["target"] if tuning else "full"}
    return " ".join(str(value) for key, value in fields.items() if key not in ("bytes", "sequence_length"))


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_layer_saves_what_torch_saves(row: dict[str, Any]) -> None:
    assert saved(row) == pytest.approx(row["bytes"], rel=LARGEST_ERROR)


@pytest.mark.parametrize("model", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2", "opt", "bert", "gpt_neox"])
def test_dense_blocks_are_exact(model: str) -> None:
    rows = [row for row in ROWS if row["model"] == model]
    assert len(rows) >= 10
    assert [saved(row) for row in rows] == pytest.approx([row["bytes"] for row in rows], rel=EXACT)


def test_what_was_recorded_spans_the_mechanisms() -> None:
    seen = {key: {row[key] for row in ROWS} for key in ROWS[0] if key != "fine_tuning"}
    adapted = {row["fine_tuning"]["target"] for row in ROWS if row["fine_tuning"]}
    assert adapted == {"attention", "attention-qv", "all-linear"}
    assert seen["kernels"] == {"eager", "partly-fused", "fused"}
    assert seen["attention"] == {"flash", "eager"}
    assert seen["weights"] == {"bf16", "fp16", "fp32", "autocast"}
    assert seen["checkpointing"] == {"none", "selective", "full"}
    assert len(seen["model"]) >= 45
