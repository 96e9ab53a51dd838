"""RunRecords of the contract: a measured run, as what the cost models take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.architecture import ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.problem import Problem
from cost_models.workload import FineTuning, Workload, usual_attention, usual_precision

PEAKS: Final = ("peak_allocated_gib", "peak_reserved_gib", "peak_device_gib")
"""Of `measured`: as torch counts what is allocated and what is reserved, and as the device shows it."""


def record_problem(record: Mapping[str, Any]) -> Problem:
    """Model, cluster and workload of a run; what the workload leaves out is as the service fills it in."""
    given = record["workload"]
    cluster = resolve_cluster(record["cluster"])
    model = _model(record["model"], given.get("sequence_length"))
    usual: dict[str, Any] = {
        "sequence_length": model.sequence_length,
        "precision": usual_precision(cluster.gpu),
        "attention": usual_attention(cluster.gpu),
    }
    fine_tuning = given.get("fine_tuning")
    adapters = _fine_tuning(fine_tuning) if fine_tuning else None
    return Problem(model, cluster, Workload(**(usual | dict(given) | {"fine_tuning": adapters})))


def record_strategy(record: Mapping[str, Any]) -> dict[str, Any]:
    """The run's strategy, with the workload's precision where it names none."""
    stated = record["workload"].get("precision")
    strategy: dict[str, Any] = record["strategy"]
    return strategy if stated is None else {"precision": stated} | strategy


def _model(given: Mapping[str, Any], sequence_length: int | None) -> ModelArchitecture:
    if "preset" in given:
        return load_model(given["preset"])
    if "hf_config" in given:
        return read_hf_config(given["hf_config"])
    return build_architecture(given["architecture"], sequence_length=sequence_length)


def _fine_tuning(given: Mapping[str, Any]) -> FineTuning:
    return FineTuning(**(dict(given) | {"modules_to_save": tuple(given.get("modules_to_save", ()))}))
