"""`searches/{id}/report`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from app.api.deps import CanRead, NoParameters, Searches, SearchId, problems
from app.api.v1.search_trials import SearchTrials
from app.services.reports import report_page

router = APIRouter(prefix="/v1/searches", tags=["searches"])


@router.get(
    "/{id}/report",
    summary="Report of a search",
    response_class=HTMLResponse,
    response_description="One self-contained page.",
    responses=problems(401, 403, 404, 409, 422, 429, 503),
    dependencies=[CanRead],
)
def get_report(id: SearchId, searches: Searches, trials: SearchTrials, _: NoParameters) -> HTMLResponse:
    """The plan, its memory, its step and its pipeline drawn, its launch commands, and what it all rests on: one HTML
    file that asks nothing of any host, so that it can be kept. A search that has not ended is a conflict."""
    search = searches.get(id)
    page = report_page(search, trials.section(search))
    return HTMLResponse(
        page.html,
        headers={
            "Content-Security-Policy": page.policy,
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": f'inline; filename="paraplan-{search.id}.html"',
        },
    )
