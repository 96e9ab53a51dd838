"""Optuna's dashboard of the studies of measured searches, read-only and behind the same key: an optional extra.

Its page asks for `/static/bundle.js`, `/api/…` and `/csv/…` at the root and cannot be told another place
(optuna-dashboard 0.21), so that these paths are forwarded as they are.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.db.study_storage import StudyStorage
from app.pages.access import MaySee, PageGuard
from app.pages.rendering import PageRoute, render

POLICY: Final = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def is_installed() -> bool:
    """Whether the extra is."""
    return find_spec("optuna_dashboard") is not None and find_spec("a2wsgi") is not None


class ReadOnlyDashboard:
    """The WSGI application behind a page's guard; made when it is first asked for, as the tables of its studies are."""

    def __init__(self, studies: StudyStorage) -> None:
        self._studies = studies
        self._app: Any = None

    async def answer(self, request: Request) -> Response:
        """Forward a GET or HEAD of somebody who may read."""
        await run_in_threadpool(PageGuard("read"), request)
        return _Forwarded(await run_in_threadpool(self._application))

    def _application(self) -> ASGIApp:
        if self._app is None:
            from a2wsgi import WSGIMiddleware
            from optuna_dashboard import wsgi

            self._app = WSGIMiddleware(wsgi(self._studies.open()))
        application: ASGIApp = self._app
        return application


class _Forwarded(Response):
    """What another application answers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._forwarded = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*scope["headers"]]
        if not any(name == b"accept-encoding" for name, _ in headers):
            headers.append((b"accept-encoding", b"identity"))  # it fails on clients that do not say

        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self._forwarded({**scope, "headers": headers, "root_path": ""}, receive, with_policy)


def install_dashboard(app: FastAPI, studies: StudyStorage) -> None:
    """The dashboard under `/dashboard`; where the extra is not installed, a page that says how. Before `/static` is
    mounted."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    if not is_installed():
        router.add_api_route("/dashboard", _how_to_install, methods=["GET"], dependencies=[MaySee])
        app.include_router(router)
        return
    dashboard = ReadOnlyDashboard(studies)

    paths = ("/dashboard", "/dashboard/{rest:path}", "/api/{rest:path}", "/csv/{rest:path}", "/static/bundle.js")
    for path in paths:
        router.add_api_route(path, dashboard.answer, methods=["GET", "HEAD"], response_class=Response)
    app.include_router(router)


def _how_to_install(request: Request) -> Response:
    return render(request, "dashboard_missing.html")
