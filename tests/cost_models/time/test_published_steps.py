"""Step times against published tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cost_models.cluster_input import resolve_cluster
from cost_models.explicit_architecture import build_architecture
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.stages import all_stages
from cost_models.strategy import partial_columns
from cost_models.time import estimate_time
from cost_models.workload import Workload

TABLE_5 = Path(__file__).parents[2] / "data" / "time_table5.csv"


def rows() -> list[dict[str, str]]:
    with TABLE_5.open(newline="") as file:
        return list(csv.DictReader(file))


def predicted_seconds(row: dict[str, str]) -> float:
    """A row of arXiv 2205.05198 Table 5: fp16, eager attention, A100-80 with 200 Gb/s a GPU."""
    architecture = {
        "layers": int(row["layers"]),
        "hidden_size": int(row["hidden_size"]),
        "attention_heads": int(row["heads"]),
        "key_value_heads": int(row["heads"]),
        "ffn_hidden_size": int(row["ffn_hidden_size"]),
        "vocab_size": int(row["vocab_size"]),
        "gated_mlp": False,
        "tied_embeddings": True,
        "position_embeddings": "learned",
    }
    workload = Workload(int(row["sequence_length"]), int(row["global_batch_size"]), precision="fp16", attention="eager")
    cluster = {
        "nodes": int(row["nodes"]),
        "gpus_per_node": 8,
        "gpu": "a100-sxm4-80gb",
        "inter_node": {"kind": "infiniband", "gbps_per_gpu": 200},
    }
    model = build_architecture(architecture, sequence_length=workload.sequence_length)
    problem = Problem(model, resolve_cluster(cluster), workload)
    strategy = {
        "framework": "megatron-lm",
        "tensor_parallel_size": int(row["tensor"]),
        "pipeline_parallel_size": int(row["pipeline"]),
        "virtual_pipeline_size": int(row["virtual"]),
        "micro_batch_size": int(row["micro_batch"]),
        "sequence_parallel": row["sequence_parallel"] == "true",
        "activation_checkpointing": row["checkpointing"],
        "zero_stage": 0,
        "precision": "fp16",
    }
    table = resolve_strategies(problem, partial_columns([strategy])).table
    return float(estimate_time(problem, table, all_stages(model, table)).step_seconds[0])


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['checkpointing']}")
def test_table_5_within_its_tolerance(row: dict[str, str]) -> None:
    assert predicted_seconds(row) == pytest.approx(float(row["step_seconds"]), rel=float(row["tolerance"]))


def test_table_5_on_average() -> None:
    errors = [abs(predicted_seconds(row) / float(row["step_seconds"]) - 1) for row in rows()]
    assert sum(errors) / len(errors) < 0.08
