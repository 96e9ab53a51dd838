"""Presets, and what each framework can run and keeps in memory."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any, Final

from cost_models.catalog.hardware import cluster_catalog, gpu_catalog
from cost_models.catalog.models import load_model, model_names, model_preset
from cost_models.framework import Framework
from cost_models.frameworks import FRAMEWORKS

_DEFAULTS: Final = (
    "zero_stage",
    "zero_stage_with_pipeline",
    "sequence_parallel_with_tensor",
    "expert_tensor_follows_tensor",
    "embedding_and_loss_count_as_layers",
    "splits_layers_by_cost",
    "kernels",
    "fp8_recipe",
    "overlap_communication",
    "gradient_as_bucket_view",
    "expandable_segments",
    "vocabulary_multiple",
)
_RUNS: Final = (
    "zero_stages",
    "pipeline_zero_stages",
    "replication_with_model_parallel",
    "pipeline_schedules",
    "zero_bubble_chunks",
    "tensor_parallel",
    "context_parallel_kinds",
    "context_chunks",
    "expert_parallel",
    "expert_zero_stages",
    "hierarchical_dispatch",
    "expert_tensor_parallel",
    "expert_tensor_is_tensor_or_one",
    "experts_need_sequence_parallel",
    "replicated_shards",
    "replicate_zero_stages",
    "secondary_shards",
    "uneven_layers",
    "interleaving_needs_whole_rounds",
    "activation_checkpointing",
    "recompute_modules",
    "offloads",
    "offload_zero_stages",
    "partial_offload_zero_stages",
    "precisions",
    "optimizers",
    "fine_tuning",
)
_KEPT: Final = ("parameter_dtype", "gradient_dtype", "optimizer_state_dtype")


@cache
def list_models() -> list[dict[str, Any]]:
    """Every model preset with its counts and its source."""
    return [_model(name) for name in model_names()]


def _model(name: str) -> dict[str, Any]:
    model = load_model(name)
    return {
        "name": name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "source": model_preset(name)["source"],
    }


def list_gpus() -> list[dict[str, Any]]:
    """Every GPU with its usual links and their sources."""
    return gpu_catalog()


def list_clusters() -> list[dict[str, Any]]:
    """Every cluster preset with its source."""
    return cluster_catalog()


def list_frameworks() -> list[dict[str, Any]]:
    """Every framework: what it runs, what it does by default, what it keeps in memory."""
    return [_framework(framework) for framework in FRAMEWORKS]


def _framework(framework: Framework) -> dict[str, Any]:
    fields = asdict(framework)
    name, version, targets = (fields.pop(field) for field in ("name", "version", "launch_targets"))
    return {
        "name": name,
        "version": version,
        "defaults": {field: fields.pop(field) for field in _DEFAULTS},
        "keeps_in_memory": {field: fields.pop(field) for field in _KEPT},
        "runs": {field: fields.pop(field) for field in _RUNS},
        "behaviour": fields,
        "launch_targets": list(targets),
    }
