"""Searches: the list, and one that is watched."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.api.deps import NoParameters, Searches, SearchId
from app.db.models import Status
from app.pages.access import MayAct, MaySee
from app.pages.paging import FilterForm, next_page
from app.pages.rendering import PageRoute, render
from app.pagination import decode_cursor, encode_cursor
from app.schemas.searches import SearchListQuery, SearchStatus

router = APIRouter(route_class=PageRoute, prefix="/searches")


class SearchFilters(FilterForm, SearchListQuery):
    """Which searches to list."""


@router.get("", dependencies=[MaySee])
def list_searches(request: Request, query: Annotated[SearchFilters, Query()], searches: Searches) -> Response:
    """Earlier searches, newest first."""
    name, separator, value = (query.label or "").partition("=")
    page = searches.list(
        limit=query.limit,
        after=None if query.cursor is None else decode_cursor(query.cursor),
        status=None if query.status is None else Status(query.status),
        label=None if query.label is None else (name, value if separator else None),
    )
    cursor = None if page.next_after is None else encode_cursor(page.next_after)
    return render(
        request,
        "searches.html",
        items=page.items,
        query=query,
        statuses=get_args(SearchStatus),
        following=next_page(request, cursor),
    )


@router.get("/{id}", dependencies=[MaySee])
def watch(request: Request, id: SearchId, searches: Searches, _: NoParameters) -> Response:
    """How far a search is; once it has ended, its report."""
    search = searches.get(id)
    if Status(search.status).is_final:
        return RedirectResponse(f"/v1/searches/{id}/report", 303)
    return render(request, "search.html", search=search)


@router.post("/{id}/cancel", dependencies=[MayAct])
def cancel(id: SearchId, searches: Searches, _: NoParameters) -> Response:
    """Stop soon, and show what was found so far."""
    searches.cancel(id)
    return RedirectResponse(f"/searches/{id}", 303)
