"""`POST advice/micro-batch`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from app.api.deps import CanRead, JsonBody, NoParameters, problems
from app.schemas.advice import MicroBatchAdvice, MicroBatchRequest
from app.services.advice import advise_micro_batch

router = APIRouter(prefix="/v1/advice", tags=["advice"])


@router.post(
    "/micro-batch",
    summary="Advise a running job from its memory",
    response_model=MicroBatchAdvice,
    response_description="The strategy to move to, and what to change first.",
    responses=problems(401, 403, 413, 415, 422, 429, 503),
    dependencies=[CanRead, JsonBody],
)
def advise_job(request: Request, body: MicroBatchRequest, _: NoParameters) -> dict[str, Any]:
    """The fastest strategy on the same GPUs that is safe at the confidence asked for: micro-batch, checkpointing and
    split, the global batch kept exactly.

    The observed curve corrects the prediction of this job and, less surely the more they differ, of its neighbours.
    The more memory is observed, the smaller is the micro-batch that is proposed, never larger.
    """
    return advise_micro_batch(body, request.app.state.serving_model)
