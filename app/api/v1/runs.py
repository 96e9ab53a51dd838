"""`runs`: log, list, get, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response, status
from fastapi.responses import JSONResponse

from app.api.deps import CanRead, CanWrite, JsonBody, NoParameters, RunId, RunsDatabase, problems
from app.db.models import Run
from app.pagination import decode_cursor, encode_cursor
from app.schemas import examples
from app.schemas.runs import LoggedIds, LoggedRun, LoggedRunPage, MeasuredFigures, RunListQuery, RunRecord, RunRecords
from app.services.runs import delete_run, get_run, list_runs, log_runs, log_single_run

router = APIRouter(prefix="/v1/runs", tags=["runs"])

RunsBody = Annotated[
    RunRecords,
    Body(
        openapi_examples={
            "one": {"summary": "One run", "value": examples.RUN},
            "many": {"summary": "Many runs", "value": [examples.RUN, examples.RUN_OUT_OF_MEMORY]},
        }
    ),
]


@router.post(
    "",
    summary="Log measured runs",
    status_code=status.HTTP_201_CREATED,
    response_model=LoggedIds,
    response_description="Logged, now or before.",
    responses=problems(401, 403, 409, 413, 415, 422, 429, 503),
    dependencies=[CanWrite, JsonBody],
)
def create_runs(body: RunsBody, database: RunsDatabase, _: NoParameters) -> dict[str, Any]:
    """Log one run, or up to 10,000: all of them or none, and every bad one is named.

    The same `key` with the same content is one run; with other content, a conflict. A strategy that breaks a rule is
    taken: the run is a fact.
    """
    if isinstance(body, list):
        return {"ids": log_runs(database, body)}
    return {"ids": [log_single_run(database, body)]}


@router.get(
    "",
    summary="List runs",
    response_model=LoggedRunPage,
    response_description="One page.",
    responses=problems(401, 403, 422, 429, 503),
    dependencies=[CanRead],
)
def list_logged_runs(query: Annotated[RunListQuery, Query()], database: RunsDatabase) -> Response:
    """Newest first."""
    page = list_runs(
        database,
        limit=query.limit,
        after=None if query.cursor is None else decode_cursor(query.cursor),
        filters=query.model_dump(exclude={"limit", "cursor"}, exclude_none=True),
    )
    return JSONResponse(
        {
            "items": [_answer(run) for run in page.items],
            "next_cursor": None if page.next_after is None else encode_cursor(page.next_after),
        }
    )


@router.get(
    "/{id}",
    summary="Get a run",
    response_model=LoggedRun,
    response_description="The run.",
    responses=problems(401, 403, 404, 422, 429, 503),
    dependencies=[CanRead],
)
def get_logged_run(id: RunId, database: RunsDatabase, _: NoParameters) -> Response:
    """The run as it was logged."""
    return JSONResponse(_answer(get_run(database, id)))


@router.delete(
    "/{id}",
    summary="Delete a run",
    status_code=status.HTTP_204_NO_CONTENT,
    response_description="It is forgotten; what was learned from it stays until the next training.",
    responses=problems(401, 403, 404, 422, 429, 503),
    dependencies=[CanWrite],
)
def delete_logged_run(id: RunId, database: RunsDatabase, _: NoParameters) -> None:
    """Forget a run, such as one that was measured wrongly. Its key is free again."""
    delete_run(database, id)


def _answer(run: Run) -> dict[str, Any]:
    # The record was checked when it was logged: it goes out as it is, with null for what was left out.
    figures = dict.fromkeys(MeasuredFigures.model_fields) | run.record["measured"]
    record = dict.fromkeys(RunRecord.model_fields) | run.record | {"measured": figures}
    return {"id": run.id, "created_at": run.created_at.isoformat().replace("+00:00", "Z"), **record}
