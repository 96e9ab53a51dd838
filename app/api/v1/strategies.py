"""`POST strategies/parse`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.deps import CanRead, JsonBody, NoParameters, problems
from app.schemas.parsing import Parsed, ParseRequest
from app.services.parsing import parse_strategy

router = APIRouter(prefix="/v1/strategies", tags=["strategies"])


@router.post(
    "/parse",
    summary="Read a launch file",
    response_model=Parsed,
    response_description="What the text says.",
    responses=problems(401, 403, 413, 415, 422, 429, 503),
    dependencies=[CanRead, JsonBody],
)
def parse_launch_file(body: ParseRequest, _: NoParameters) -> dict[str, Any]:
    """A config or launch script that is in use, as a Strategy: to price it, or as `current` of a search."""
    return parse_strategy(body)
