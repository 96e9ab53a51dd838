"""Problems that the tests of strategies share."""

from __future__ import annotations

from typing import Any

from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.strategy import StrategyTable, partial_columns
from cost_models.workload import Workload


def make_problem(model: str, cluster: dict[str, Any], **workload: Any) -> Problem:
    """A catalog model on a cluster of the contract, sequence 4096 and global batch 512 unless said otherwise."""
    return Problem(
        load_model(model),
        resolve_cluster(cluster),
        Workload(**{"sequence_length": 4096, "global_batch_size": 512, **workload}),
    )


def resolved(problem: Problem, *strategies: dict[str, Any]) -> StrategyTable:
    """Strategies of the contract, every field filled."""
    return resolve_strategies(problem, partial_columns(strategies)).table


def h100(nodes: int) -> dict[str, Any]:
    """DGX H100 nodes."""
    return {"preset": "dgx-h100", "nodes": nodes}


def a100(nodes: int) -> dict[str, Any]:
    """DGX A100 nodes."""
    return {"preset": "dgx-a100", "nodes": nodes}


def megatron(tensor: int, pipeline: int, **fields: Any) -> dict[str, Any]:
    """A strategy of Megatron-LM with the distributed optimizer."""
    sizes = {"framework": "megatron-lm", "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    return {**sizes, "zero_stage": 1, **fields}
