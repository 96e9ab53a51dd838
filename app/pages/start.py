"""`/`: what to search plans for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.api.deps import NoParameters, Searches
from app.errors import Unauthenticated
from app.pages.access import FormValues, MaySee, PageGuard
from app.pages.rendering import PageRoute, render
from app.pages.start_form import (
    CHOICES,
    FormRefused,
    ReadBack,
    StartForm,
    fresh_form,
    read_back,
    search_request,
    typed_form,
)
from app.services.catalog import list_clusters, list_models

LATEST: Final = 5
"""Searches that the start page lists."""
MORE: Final = ("objective", "memory_confidence", "deadline_days", "seconds", "plans", "labels")
"""Inputs that are folded away as long as they are empty."""

router = APIRouter(route_class=PageRoute)


def _form(values: FormValues) -> StartForm:
    return typed_form(values)


Typed = Annotated[StartForm, Depends(_form)]


@router.get("/", dependencies=[MaySee])
def start(request: Request, searches: Searches, _: NoParameters) -> Response:
    """The form, and the latest searches."""
    return _page(request, fresh_form(), latest=searches.list(limit=LATEST).items)


@router.post("/")
def search(request: Request, form: Typed, searches: Searches, _: NoParameters) -> Response:
    """Begin the search and go where it can be watched; what is wrong is said beside its input, and all is kept."""
    try:
        PageGuard("write")(request)
    except Unauthenticated:
        message = "Your key is no longer valid. Sign in in another tab, then press Search again: nothing here is lost."
        return _page(request, form, status=401, errors={"": [message]})
    try:
        body = search_request(form)
    except FormRefused as refused:
        return _page(request, form, status=422, errors=refused.errors)
    created = searches.create(body.model_dump(mode="json", exclude_unset=True), labels=body.labels or {})
    request.app.state.metrics.searches.inc()
    return RedirectResponse(f"/searches/{created.id}", 303)


@router.post("/read", dependencies=[MaySee])
def read(request: Request, form: Typed, _: NoParameters) -> Response:
    """What is understood of a pasted launch file."""
    try:
        filled, found = read_back(form)
    except FormRefused as refused:
        return _page(request, form, status=422, errors=refused.errors)
    return _page(request, filled, found=found)


def _page(
    request: Request,
    form: StartForm,
    *,
    status: int = 200,
    errors: Mapping[str, list[str]] | None = None,
    found: ReadBack | None = None,
    latest: Any = (),
) -> Response:
    return render(
        request,
        "start.html",
        status=status,
        texts=form.texts,
        ticked=form.frameworks,
        errors=errors or {},
        found=found,
        latest=latest,
        choices=CHOICES,
        choice_options={name: [(value, value) for value in values] for name, values in CHOICES.items()},
        model_options=[
            (model["name"], f"{model['name']}, {_billions(model['parameters'])}") for model in list_models()
        ],
        cluster_options=[
            (cluster["preset"], f"{cluster['preset']}, {cluster['gpus_per_node']} × {cluster['gpu']}")
            for cluster in list_clusters()
        ],
        more_open=bool(form.frameworks) or any(form.texts[name] for name in MORE),
    )


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} B"
