"""`POST estimates`."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from app.api.deps import CanRead, JsonBody, NoParameters, problems
from app.schemas.estimates import EstimateAnswer, EstimateRequest
from app.services.estimates import estimate_strategies

router = APIRouter(prefix="/v1/estimates", tags=["estimates"])


@router.post(
    "",
    summary="Score given strategies",
    response_model=EstimateAnswer,
    response_description="One Estimate for each strategy, in order.",
    responses=problems(401, 403, 413, 415, 422, 429, 503),
    dependencies=[CanRead, JsonBody],
)
def create_estimates(request: Request, body: EstimateRequest, _: NoParameters) -> Response:
    """Memory and step time of up to 20,000 strategies: one answer each, in order.

    A strategy that breaks rules is `valid: false` with every code, not an error of the request.
    """
    answer = estimate_strategies(body, request.app.state.serving_model)
    request.app.state.metrics.estimates.inc(len(body.strategies))
    # Plain values straight to JSON: to validate what we computed ourselves would cost more than to compute it.
    return Response(json.dumps(answer, allow_nan=False, separators=(",", ":")), media_type="application/json")
