"""Templates, and errors as pages in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response

from app.security import KEY_COOKIE

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # A form says where it comes from; other sites still learn nothing.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _moment(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["moment"] = _moment
ENVIRONMENT.filters["percent"] = _percent


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """One page."""
    shared = {"path": request.url.path, "signed_in": KEY_COOKIE in request.cookies}
    return HTMLResponse(ENVIRONMENT.get_template(template).render(shared | values), status, HEADERS)


class PageRoute(APIRoute):
    """A route whose errors are pages. What an error says, and its status, is what the API says of it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, with its errors rendered."""
        handle = super().get_route_handler()

        async def handle_with_pages(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                problem = await _problem(request, error)
                if problem is None:
                    raise
                return _error_page(request, problem)

        return handle_with_pages


async def _problem(request: Request, error: Exception) -> Response | None:
    """What the API answers to an error; None: it is a fault."""
    for kind in type(error).__mro__:
        if (handler := request.app.exception_handlers.get(kind)) is not None:
            response: Response = await run_in_threadpool(handler, request, error)
            return response
    return None


def _error_page(request: Request, answered: Response) -> Response:
    problem = json.loads(bytes(answered.body))
    status = answered.status_code
    if status == 401:
        page = render(request, "sign_in.html", status=status, next_path=_here(request), message=None)
    else:
        page = render(request, "error.html", status=status, problem=problem)
    for name in ("retry-after", "www-authenticate"):
        if name in answered.headers:
            page.headers[name] = answered.headers[name]
    return page


def _here(request: Request) -> str:
    """Where to go on after signing in: a form that was sent is not sent again."""
    query = f"?{request.url.query}" if request.url.query else ""
    return request.url.path + query if request.method == "GET" else "/"
