"""`POST models/inspect`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.deps import CanRead, JsonBody, NoParameters, problems
from app.schemas.models import InspectRequest, ModelInspection
from app.services.models import inspect_model

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.post(
    "/inspect",
    summary="Read a model",
    response_model=ModelInspection,
    response_description="What was understood of the model.",
    responses=problems(401, 403, 413, 415, 422, 429, 503),
    dependencies=[CanRead, JsonBody],
)
def inspect(body: InspectRequest, _: NoParameters) -> dict[str, Any]:
    """Parameter counts, exact to the last one, and the architecture as it will be priced."""
    return inspect_model(body.model)
