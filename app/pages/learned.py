"""What was learned from runs: versions, their errors, and plots of them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from app.api.deps import NoParameters
from app.pages.access import MaySee
from app.pages.paging import FilterForm, next_page
from app.pages.plots import learning_curve_plot, reliability_plot
from app.pages.rendering import PageRoute, render
from app.pagination import decode_cursor, encode_cursor
from app.schemas.memory_models import MemoryModelListQuery
from app.services.memory_models import MemoryModelService

router = APIRouter(route_class=PageRoute, prefix="/memory-models")

GROUPINGS: Final = {
    "own_run": "the next runs of clusters that have logged some",
    "model_shape": "model shapes that it had not seen",
    "source": "sources that it had not seen",
}


def _service(request: Request) -> MemoryModelService:
    service: MemoryModelService = request.app.state.memory_models
    return service


MemoryModels = Annotated[MemoryModelService, Depends(_service)]
Version = Annotated[int, Path()]


class VersionPages(FilterForm, MemoryModelListQuery):
    """Which versions to list."""


@router.get("", dependencies=[MaySee])
def list_versions(request: Request, query: Annotated[VersionPages, Query()], models: MemoryModels) -> Response:
    """Versions, newest first."""
    page = models.list(limit=query.limit, before=None if query.cursor is None else int(decode_cursor(query.cursor)[1]))
    last = page.items[-1] if page.has_more else None
    cursor = None if last is None else encode_cursor((last.created_at, str(last.version)))
    return render(
        request,
        "memory_models.html",
        items=page.items,
        schedule=models.schedule(),
        following=next_page(request, cursor),
    )


@router.get("/{version}", dependencies=[MaySee])
def show_version(request: Request, version: Version, models: MemoryModels, _: NoParameters) -> Response:
    """One version: how far its figures can be believed, and what own runs bring."""
    model = models.get(version)
    report = model.report
    judged = {} if report is None else report["candidate"]
    lines = [] if report is None else report["learning_curve"]
    return render(
        request,
        "memory_model.html",
        model=model,
        report=report,
        groupings=GROUPINGS,
        reliability=[
            (meaning, found, reliability_plot(found))
            for name, meaning in GROUPINGS.items()
            if (found := judged.get(name)) is not None and "reliability" in found
        ],
        curve=learning_curve_plot(lines) if lines else None,
    )
