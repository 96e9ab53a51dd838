"""Logged runs: the list."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.deps import RunsDatabase
from app.pages.access import MaySee
from app.pages.paging import FilterForm, next_page
from app.pages.rendering import PageRoute, render
from app.pagination import decode_cursor, encode_cursor
from app.schemas.runs import MeasuredFigures, RunListQuery
from app.schemas.strategies import Framework
from app.services.runs import list_runs

router = APIRouter(route_class=PageRoute, prefix="/runs")


class RunFilters(FilterForm, RunListQuery):
    """Which runs to list."""


@router.get("", dependencies=[MaySee])
def list_logged_runs(request: Request, query: Annotated[RunFilters, Query()], database: RunsDatabase) -> Response:
    """Logged runs, newest first."""
    page = list_runs(
        database,
        limit=query.limit,
        after=None if query.cursor is None else decode_cursor(query.cursor),
        filters=query.model_dump(exclude={"limit", "cursor"}, exclude_none=True),
    )
    nothing = dict.fromkeys(MeasuredFigures.model_fields)
    return render(
        request,
        "runs.html",
        items=[(run, nothing | run.record["measured"]) for run in page.items],
        query=query,
        frameworks=get_args(Framework),
        following=next_page(request, None if page.next_after is None else encode_cursor(page.next_after)),
    )
