"""Small searches on real models and clusters, quick enough to be enumerated in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.catalog.models import load_model
from cost_models.cluster import Cluster
from cost_models.cluster_input import load_cluster_preset
from cost_models.workload import Workload
from search import Progress, SearchProblem, SearchResult, Trial, run_search

NARROW: Mapping[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1, 2, 4),
    "context_parallel_size": (1, 2),
    "pipeline_parallel_size": (1, 2, 4),
    "virtual_pipeline_size": (1,),
    "pipeline_schedule": ("1f1b",),
    "zero_stage": (0, 1, 3),
    "micro_batch_size": (1, 2, 4),
    "activation_checkpointing": ("none", "selective"),
    "offload": ("none",),
    "data_parallel_replicate_size": (1,),
}


def cluster(preset: str = "dgx-h100", nodes: int = 1, **changes: Any) -> Cluster:
    return replace(load_cluster_preset(preset, nodes), **changes)


def small_search(model: str = "llama-3-8b", **changes: Any) -> SearchProblem:
    fields: dict[str, Any] = {
        "model": load_model(model),
        "clusters": (cluster(),),
        "workload": Workload(sequence_length=4096, global_batch_size=32),
        "frameworks": ("megatron-lm", "fsdp2"),
        "trials": 64,
        "seconds": 1e9,
        "plans": 5,
    }
    return SearchProblem(**{**fields, **changes})


class Recorder:
    """Everything that a search reports."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.blocks: list[list[Trial]] = []

    def __call__(self, progress: Progress, trials: Sequence[Trial]) -> None:
        self.progress.append(progress)
        if trials:
            self.blocks.append(list(trials))

    @property
    def trials(self) -> list[Trial]:
        return [trial for block in self.blocks for trial in block]


def run(search: SearchProblem, recorder: Recorder | None = None, past: Sequence[Trial] = ()) -> SearchResult:
    return run_search(search, past=past, report=recorder or Recorder(), cancelled=lambda: False, clock=lambda: 0.0)
