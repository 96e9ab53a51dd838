"""From a plan of a search that has ended to the files that start it.

LaunchError
├── PlanNotFound      the search has no plan of this rank
└── SearchNotEnded    the search has no plans yet
"""

from __future__ import annotations

import json
from typing import Any

from app.db.models import Search, Status
from app.schemas.clusters import ClusterPreset, ClusterSpec
from app.schemas.searches import SearchRequest
from app.services.problems import resolve_problem
from cost_models.problem import Problem
from search.launch import targets
from search.launch.job import LaunchFiles, LaunchJob

_UNFINISHED = (Status.QUEUED, Status.RUNNING)


class LaunchError(Exception):
    """Root of the errors of this service."""


class PlanNotFound(LaunchError):
    """The search has no plan of this rank."""

    def __init__(self, search: Search, rank: int, plans: int) -> None:
        super().__init__(f"search {search.id!r} ({search.status}) has {plans} plans, and none of rank {rank}")


class SearchNotEnded(LaunchError):
    """The search has no plans yet."""

    def __init__(self, search: Search) -> None:
        super().__init__(f"search {search.id!r} is {search.status}; it has plans once it has ended")


def launch_files(search: Search, rank: int, target: str | None) -> LaunchFiles:
    """The files of the plan of this rank; `target` None: the first of the plan's framework.

    Raises:
        SearchNotEnded: It waits or runs.
        PlanNotFound: It ended without a plan of this rank.
        InvalidInput: The plan's framework has no such target.
        NotExpressible: The target has no setting for some of what was planned.
    """
    return targets.write(_job(search, _plan(search, rank)), target)


def _plan(search: Search, rank: int) -> dict[str, Any]:
    if search.status in _UNFINISHED:
        raise SearchNotEnded(search)
    plans: list[dict[str, Any]] = (search.result or {}).get("plans", [])
    found = next((plan for plan in plans if plan["rank"] == rank), None)
    if found is None:
        raise PlanNotFound(search, rank, len(plans))
    return found


def _job(search: Search, plan: dict[str, Any]) -> LaunchJob:
    problem = planned_problem(search, plan)
    return LaunchJob(model=problem.model, cluster=problem.cluster, workload=problem.workload, strategy=plan["strategy"])


def planned_problem(search: Search, plan: dict[str, Any]) -> Problem:
    """Model, cluster and workload as the stored request gives them, the cluster with the plan's nodes."""
    asked = SearchRequest.model_validate_json(json.dumps(search.request))
    cluster: ClusterPreset | ClusterSpec = asked.cluster.model_copy(update={"nodes": plan["nodes"]})
    return resolve_problem(asked.model, cluster, asked.workload).problem
