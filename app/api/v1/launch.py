"""`searches/{id}/plans/{rank}/launch`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from app.api.deps import CanRead, Searches, SearchId, problems
from app.schemas.launch import Launch, LaunchQuery
from app.services.launches import launch_files

router = APIRouter(prefix="/v1/searches", tags=["searches"])

Rank = Annotated[int, Path(ge=1, le=1000, description="Of the plan; 1 is the best.")]


@router.get(
    "/{id}/plans/{rank}/launch",
    summary="Launch files of a plan",
    response_model=Launch,
    response_description="The files, and what to type.",
    responses=problems(401, 403, 404, 409, 422, 429, 503),
    dependencies=[CanRead],
)
def launch_plan(id: SearchId, rank: Rank, query: Annotated[LaunchQuery, Query()], searches: Searches) -> dict[str, Any]:
    """The files that start a plan with a framework. What the target has no setting for is a conflict that names it."""
    return asdict(launch_files(searches.get(id), rank, query.target))
