"""`searches/{id}/trials`: ask and tell of a measured search."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, status

from app.api.deps import CanWrite, JsonBody, NoParameters, SearchId, problems
from app.schemas.search_trials import AskedTrial, ToldTrial, TrialOutcome
from app.services.search_trials import SearchTrialService

router = APIRouter(prefix="/v1/searches", tags=["searches"])


def search_trial_service(request: Request) -> SearchTrialService:
    """The use cases on trials of measured searches."""
    service: SearchTrialService = request.app.state.search_trials
    return service


SearchTrials = Annotated[SearchTrialService, Depends(search_trial_service)]
TrialNumber = Annotated[int, Path(ge=0, le=2**31 - 1, description="`trial`, as the ask answered it.")]


@router.post(
    "/{id}/trials",
    summary="Ask for a trial",
    status_code=status.HTTP_201_CREATED,
    response_model=AskedTrial,
    response_description="Run it, and tell what it gave.",
    responses=problems(401, 403, 404, 409, 422, 429, 503),
    dependencies=[CanWrite],
)
def ask_trial(id: SearchId, trials: SearchTrials, _: NoParameters) -> dict[str, Any]:
    """The next strategy worth running, of a search in mode `measured` that has succeeded.

    Several runners may ask at once: each is given another strategy. A trial whose outcome is not told in time is given
    to the next who asks. 409 says why there is none: no answer yet, the budget used up, no candidate left.
    """
    return trials.ask(id)


@router.post(
    "/{id}/trials/{n}",
    summary="Tell the outcome of a trial",
    response_model=ToldTrial,
    response_description="Noted; a run is logged too.",
    responses=problems(401, 403, 404, 409, 413, 415, 422, 429, 503),
    dependencies=[CanWrite, JsonBody],
)
def tell_trial(
    id: SearchId, n: TrialNumber, body: TrialOutcome, trials: SearchTrials, _: NoParameters
) -> dict[str, Any]:
    """What its run measured, or that it failed. The same outcome again is answered as before; another is a conflict.

    The run is logged like one of `POST /v1/runs`, under the key `search:{id}:trial:{n}`: the service learns from it.
    """
    return trials.tell(id, n, body)
