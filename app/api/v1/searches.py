"""`searches`: create, list, get, cancel, watch."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response, status
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.api.deps import CanRead, CanWrite, JsonBody, NoParameters, Searches, SearchId, problems
from app.api.search_events import watch
from app.api.v1.search_trials import SearchTrials
from app.db.models import Search as StoredSearch
from app.db.models import Status
from app.pagination import decode_cursor, encode_cursor
from app.schemas.searches import Search, SearchListQuery, SearchPage, SearchRequest
from app.services.problems import search_problem
from app.services.search_trials import SearchTrialService

router = APIRouter(prefix="/v1/searches", tags=["searches"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key with the same body is one search; with another body, a conflict.",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=20, description="The last event seen; older progress is not repeated."),
]


@router.post(
    "",
    summary="Search plans",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=Search,
    response_description="Accepted; `Location` is where it can be watched.",
    responses={
        202: {"headers": {"Location": {"description": "Where the search is.", "schema": {"type": "string"}}}},
        **problems(401, 403, 409, 413, 415, 422, 429, 503),
    },
    dependencies=[CanWrite, JsonBody],
)
def create_search(
    request: Request,
    response: Response,
    body: SearchRequest,
    searches: Searches,
    _: NoParameters,
    trials: SearchTrials,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Accept a search and work on it in the background. What is wrong with the request is found now, not later."""
    search_problem(body)
    created = searches.create(
        body.model_dump(mode="json", exclude_unset=True), labels=body.labels or {}, idempotency_key=idempotency_key
    )
    request.app.state.metrics.searches.inc()
    response.headers["Location"] = f"/v1/searches/{created.id}"
    return _answer(created) | {"result": _result(created, trials)}


@router.get(
    "",
    summary="List searches",
    response_model=SearchPage,
    response_description="One page.",
    responses=problems(401, 403, 422, 429, 503),
    dependencies=[CanRead],
)
def list_searches(query: Annotated[SearchListQuery, Query()], searches: Searches) -> dict[str, Any]:
    """Newest first, without results."""
    name, separator, value = (query.label or "").partition("=")
    page = searches.list(
        limit=query.limit,
        after=None if query.cursor is None else decode_cursor(query.cursor),
        status=None if query.status is None else Status(query.status),
        label=None if query.label is None else (name, value if separator else None),
    )
    return {
        "items": [_answer(search) | {"result": None} for search in page.items],
        "next_cursor": None if page.next_after is None else encode_cursor(page.next_after),
    }


@router.get(
    "/{id}",
    summary="Get a search",
    response_model=Search,
    response_description="The search.",
    responses=problems(401, 403, 404, 422, 429, 503),
    dependencies=[CanRead],
)
def get_search(id: SearchId, searches: Searches, trials: SearchTrials, _: NoParameters) -> dict[str, Any]:
    """Where it stands, and its plans once it has ended; of a measured search its trials too."""
    search = searches.get(id)
    return _answer(search) | {"result": _result(search, trials)}


@router.post(
    "/{id}/cancel",
    summary="Cancel a search",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=Search,
    response_description="It ends soon.",
    responses=problems(401, 403, 404, 409, 422, 429, 503),
    dependencies=[CanWrite],
)
def cancel_search(id: SearchId, searches: Searches, trials: SearchTrials, _: NoParameters) -> dict[str, Any]:
    """Stop soon; the plans found so far are kept."""
    search = searches.cancel(id)
    return _answer(search) | {"result": _result(search, trials)}


def _existing(id: SearchId, searches: Searches) -> str:
    searches.state(id)
    return id


@router.get(
    "/{id}/events",
    summary="Watch a search",
    response_class=EventSourceResponse,
    responses=problems(401, 403, 404, 422, 429, 503),
    dependencies=[CanRead],
)
async def watch_search(
    id: Annotated[str, Depends(_existing)],
    searches: Searches,
    _: NoParameters,
    last_event_id: LastEventId = None,
) -> AsyncIterable[ServerSentEvent]:
    """Server-sent events: `progress` while it runs, then `done`. A connection ends after ten minutes; reconnect."""
    async for event in watch(searches, id, last_event_id=last_event_id):
        yield event


def _result(search: StoredSearch, trials: SearchTrialService) -> dict[str, Any] | None:
    return None if search.result is None else {**search.result, "measured": trials.section(search)}


def _answer(search: StoredSearch) -> dict[str, Any]:
    return {
        "id": search.id,
        "status": search.status,
        "created_at": search.created_at,
        "finished_at": search.finished_at,
        "labels": search.labels,
        "progress": search.progress,
        "error": search.error,
        "report": None if search.finished_at is None else f"/v1/searches/{search.id}/report",
    }
