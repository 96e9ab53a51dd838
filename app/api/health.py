"""Liveness, readiness and metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from app.api.deps import NoParameters, problems
from app.db.migrate import SchemaMismatch, require_current
from app.errors import NotReady
from app.schemas.base import ResponseModel

router = APIRouter(tags=["health"])


class Health(ResponseModel):
    """Up."""

    status: Literal["ok"] = Field("ok")


@router.get("/healthz", summary="Is the process alive?", responses=problems(422))
async def healthz(_: NoParameters) -> Health:
    """Answers as long as the process does, also when every worker thread is busy."""
    return Health()


@router.get("/readyz", summary="Can it answer?", responses=problems(422, 503))
def readyz(request: Request, _: NoParameters) -> Health:
    """The database answers and has this version's schema."""
    try:
        require_current(request.app.state.database.engine)
    except SchemaMismatch as error:
        raise NotReady(str(error)) from error
    return Health()


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(422, 503)},
)
def metrics(request: Request, _: NoParameters) -> Response:
    """Requests by route template, searches by status, queue depth."""
    registry = request.app.state.metrics.registry
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
