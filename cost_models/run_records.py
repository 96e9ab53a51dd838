"""RunRecords of the contract: a measured run, as what the cost models take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.architecture import ModelArchitecture
from cost_models.catalog.models import load_model
from cost_models.cluster_input import resolve_cluster
from cost_models.explicit_architecture import build_architecture
from cost_models.hf_config import read_hf_config
from cost_models.problem import Problem
from cost_models.workload import FineTuning, Workload


def record_problem(record: Mapping[str, Any]) -> Problem:
    """Model, cluster and workload of a run."""
    workload = _workload(record["workload"])
    return Problem(_model(record["model"], workload), resolve_cluster(record["cluster"]), workload)


def record_strategy(record: Mapping[str, Any]) -> dict[str, Any]:
    """The run's strategy, with the workload's precision where it names none."""
    strategy: dict[str, Any] = record["strategy"]
    return {"precision": _workload(record["workload"]).precision} | strategy


def _model(given: Mapping[str, Any], workload: Workload) -> ModelArchitecture:
    if "preset" in given:
        return load_model(given["preset"])
    if "hf_config" in given:
        return read_hf_config(given["hf_config"])
    return build_architecture(given["architecture"], sequence_length=workload.sequence_length)


def _workload(given: Mapping[str, Any]) -> Workload:
    fine_tuning = given.get("fine_tuning")
    if not fine_tuning:
        return Workload(**given)
    saved = tuple(fine_tuning.get("modules_to_save", ()))
    return Workload(**(dict(given) | {"fine_tuning": FineTuning(**(dict(fine_tuning) | {"modules_to_save": saved}))}))
