"""Plans as the launch writers take them: resolved strategies on preset models and clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cost_models.architecture import ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.cluster import Cluster
from cost_models.cluster_input import load_cluster_preset
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns
from cost_models.workload import Workload
from search.launch.job import LaunchJob


def launch_job(
    model: str | ModelArchitecture = "llama-3-8b",
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    **strategy: Any,
) -> LaunchJob:
    """A job whose strategy has what is given, and the framework's defaults else."""
    architecture = load_model(model) if isinstance(model, str) else model
    place = load_cluster_preset("dgx-h100", 1) if cluster is None else cluster
    work = Workload(sequence_length=4096, global_batch_size=64) if workload is None else workload
    asked = partial_columns([{"framework": "megatron-lm", **strategy}])
    resolved = resolve_strategies(Problem(architecture, place, work), asked).table.row(0)
    return LaunchJob(model=architecture, cluster=place, workload=work, strategy=resolved)


def gpus(count: int, preset: str = "dgx-h100") -> Cluster:
    """A preset cluster cut to so many GPUs."""
    cluster = load_cluster_preset(preset, 1)
    if count >= cluster.gpus_per_node:
        return load_cluster_preset(preset, count // cluster.gpus_per_node)
    return replace(cluster, gpus_per_node=count, nvlink_domain_gpus=min(count, cluster.nvlink_domain_gpus))
