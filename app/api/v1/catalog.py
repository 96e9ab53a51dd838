"""`GET catalog/*`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.deps import CanRead, NoParameters, problems
from app.schemas.catalog import ClusterCatalog, FrameworkCatalog, GpuCatalog, ModelCatalog
from app.services import catalog

router = APIRouter(
    prefix="/v1/catalog",
    tags=["catalog"],
    responses=problems(401, 403, 422, 429, 503),
    dependencies=[CanRead],
)

Items = dict[str, list[dict[str, Any]]]


@router.get("/models", summary="Models by name", response_model=ModelCatalog)
def models(_: NoParameters) -> Items:
    """Every model preset with its size and source."""
    return {"items": catalog.list_models()}


@router.get("/gpus", summary="GPUs by name", response_model=GpuCatalog)
def gpus(_: NoParameters) -> Items:
    """Every GPU: usable memory, dense peaks, usual links, each with its source."""
    return {"items": catalog.list_gpus()}


@router.get("/clusters", summary="Clusters by name", response_model=ClusterCatalog)
def clusters(_: NoParameters) -> Items:
    """Every cluster preset with its source."""
    return {"items": catalog.list_clusters()}


@router.get("/frameworks", summary="Frameworks", response_model=FrameworkCatalog)
def frameworks(_: NoParameters) -> Items:
    """What each framework can run, its defaults, and what it keeps in memory."""
    return {"items": catalog.list_frameworks()}
