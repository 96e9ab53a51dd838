"""The only table from exceptions to HTTP: status, slug and title of an RFC 9457 problem.

Errors raised at the edge itself:

EdgeError
├── Unauthenticated   no valid key, where one is needed
├── Forbidden         a valid key without the scope that the operation needs
├── UnsupportedMedia  a body that is something else by its content type
├── CrossSite         a form from a page of another site
├── TooManyRequests   the client's rate limit is used up
├── NotReady          the database does not have the schema that this version needs
└── BodyTooLarge      more bytes than the endpoint takes
"""

from __future__ import annotations

import http
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from app.db.migrate import SchemaMismatch, require_current
from app.schemas.clusters import UNION_TAGS
from app.services.advice import StrategyInvalid
from app.services.launches import PlanNotFound, SearchNotEnded
from app.services.memory_models import CannotServe, MemoryModelNotFound
from app.services.run_checks import RunKeyConflict, RunsNotLogged, RunsRefused
from app.services.runs import RunNotFound
from app.services.search_trials import NotAnswered, NothingToAsk, NotMeasured, TrialNotFound, TrialTold
from app.services.searches import IdempotencyConflict, SearchEnded, SearchNotFound
from cost_models.errors import InvalidInput
from cost_models.strategy import COLUMNS
from search.launch.job import NotExpressible

log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 100
"""Errors listed in one answer; 20,000 wrong strategies need not be named one by one."""
DATABASE_RETRY_SECONDS: Final = 5


class EdgeError(HTTPException):
    """Root of what is refused before a use case is called."""


class Unauthenticated(EdgeError):
    """No valid key."""

    def __init__(self) -> None:
        super().__init__(401, "a valid key is needed in the header X-API-Key", {"WWW-Authenticate": "ApiKey"})


class Forbidden(EdgeError):
    """The key lacks a scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(403, f"the key does not have the scope {scope!r}")


class UnsupportedMedia(EdgeError):
    """The body has another content type than the operation takes."""

    def __init__(self, expected: str = "application/json") -> None:
        super().__init__(415, f"the body must be sent as {expected}", {"Accept": expected})


class CrossSite(EdgeError):
    """A page of another site sends a form, which browsers let it do without asking."""

    def __init__(self) -> None:
        super().__init__(403, "a page of another site may not send this")


class TooManyRequests(EdgeError):
    """The rate limit is used up."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(429, "too many requests; try again later", {"Retry-After": str(max(1, retry_after_seconds))})


class NotReady(EdgeError):
    """The service cannot answer yet."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, reason, {"Retry-After": str(DATABASE_RETRY_SECONDS)})


class BodyTooLarge(EdgeError):
    """The body has more bytes than the endpoint takes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(413, f"the body must not exceed {limit_bytes} bytes")


TABLE: Final[tuple[tuple[type[Exception], int, str, str], ...]] = (
    (InvalidInput, 422, "invalid-request", "The request breaks a rule"),
    (RequestValidationError, 422, "invalid-request", "The request breaks a rule"),
    (RunsRefused, 422, "invalid-request", "The request breaks a rule"),
    (StrategyInvalid, 422, "invalid-strategy", "The strategy breaks a rule"),
    (RunKeyConflict, 409, "key-conflict", "The key belongs to another run"),
    (RunNotFound, 404, "run-not-found", "There is no such run"),
    (SearchNotFound, 404, "search-not-found", "There is no such search"),
    (PlanNotFound, 404, "plan-not-found", "There is no such plan"),
    (SearchNotEnded, 409, "search-not-ended", "The search has not ended yet"),
    (NotExpressible, 409, "not-expressible", "The target has no setting for it"),
    (SearchEnded, 409, "search-ended", "The search has already ended"),
    (NotMeasured, 409, "search-not-measured", "The search has no trials to run"),
    (NotAnswered, 409, "search-not-answered", "The search has no answer to try"),
    (NothingToAsk, 409, "nothing-to-ask", "There is nothing to run"),
    (TrialNotFound, 404, "trial-not-found", "There is no such trial"),
    (TrialTold, 409, "trial-told", "The trial was told another outcome"),
    (MemoryModelNotFound, 404, "memory-model-not-found", "There is no such version"),
    (CannotServe, 409, "memory-model-cannot-serve", "The version cannot serve"),
    (IdempotencyConflict, 409, "idempotency-conflict", "The idempotency key was used for another request"),
    (OperationalError, 503, "database-unavailable", "The database does not answer"),
    (InterfaceError, 503, "database-unavailable", "The database does not answer"),
    (PoolTimeout, 503, "database-unavailable", "The database does not answer"),
)


HTTP_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("unauthenticated", "A key is needed"),
    403: ("forbidden", "The key does not allow it"),
    404: ("not-found", "There is nothing at this address"),
    405: ("method-not-allowed", "This address does not take the method"),
    413: ("content-too-large", "The body is too large"),
    415: ("unsupported-media-type", "The body has another media type"),
    429: ("too-many-requests", "The rate limit is used up"),
    503: ("not-ready", "The service is not ready"),
}
"""Slug and title of an EdgeError, and of what the router itself refuses."""


def problem_response(
    request_path: str,
    status: int,
    slug: str,
    title: str,
    detail: str,
    *,
    errors: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One problem. ASCII JSON: what it repeats of a request may hold half a surrogate pair."""
    body: dict[str, Any] = {
        "type": f"urn:paraplan:problem:{slug}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": request_path,
    }
    if errors is not None:
        body["errors"] = errors
    return Response(json.dumps(body), status, headers, MEDIA_TYPE)


def unexpected_response(request_path: str) -> Response:
    """A fault of ours, without its internals."""
    return problem_response(
        request_path, 500, "internal-error", "Internal error", "The service failed to answer; the fault is logged."
    )


def install_error_handlers(app: FastAPI) -> None:
    """Render every exception of the table, and every HTTP error, as a problem."""
    for exception, *_ in TABLE:
        app.add_exception_handler(exception, _listed)
    app.add_exception_handler(HTTPException, _http)
    for refused in (ProgrammingError, IntegrityError):
        app.add_exception_handler(refused, _perhaps_of_another_version)


def _listed(request: Request, error: Exception) -> Response:
    _, status, slug, title = next(row for row in TABLE if isinstance(error, row[0]))
    path = request.url.path
    if isinstance(error, InvalidInput):
        loc = error.loc if error.loc[:1] == ("query",) else ("body", *error.loc)
        return _invalid(path, slug, title, [_field_error(loc, error.code, error.message)], 1)
    if isinstance(error, NotExpressible):
        listed = [_field_error(_planned(name), "not_expressible", why) for name, why in error.reasons.items()]
        return _invalid(path, slug, title, listed, len(listed), status=status)
    if isinstance(error, RunsNotLogged | StrategyInvalid):
        # All of them: whoever logs many runs needs to know every bad one, and every rule that a strategy breaks.
        listed = [_field_error(("body", *found.loc), found.code, found.message) for found in error.errors]
        return _invalid(path, slug, title, listed, len(listed), status=status)
    if isinstance(error, RequestValidationError):
        found = error.errors()
        listed = [_field_error(item["loc"], item["type"], _message(item)) for item in found[:MAX_ERRORS]]
        return _invalid(path, slug, title, listed, len(found))
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        log.error("database_unavailable", error=str(error))
        retry = {"Retry-After": str(DATABASE_RETRY_SECONDS)}
        return problem_response(path, status, slug, title, "The database does not answer; try again.", headers=retry)
    return problem_response(path, status, slug, title, str(error))


def _planned(name: str) -> tuple[str, ...]:
    """Where a field of a plan is: in its strategy, or in what was asked for."""
    if name in COLUMNS:
        return ("strategy", name)
    return (name,) if name in ("model", "cluster") else ("workload", name)


def _perhaps_of_another_version(request: Request, error: Exception) -> Response:
    """A statement that the database refuses is a fault of ours, unless another host has migrated the database."""
    try:
        require_current(request.app.state.database.engine)
    except SchemaMismatch as mismatch:
        return _http(request, NotReady(str(mismatch)))
    raise error


def _invalid(
    path: str, slug: str, title: str, errors: list[dict[str, Any]], count: int, *, status: int = 422
) -> Response:
    first = errors[0]
    detail = f"{'.'.join(map(str, first['loc']))}: {first['message']}"
    more = f" (and {count - 1} more)" if count > 1 else ""
    return problem_response(path, status, slug, title, detail + more, errors=errors)


def _field_error(loc: Iterable[str | int], code: str, message: str) -> dict[str, Any]:
    return {"loc": [part for part in loc if part not in UNION_TAGS], "code": code, "message": message}


def _message(item: Mapping[str, Any]) -> str:
    if item["type"] == "json_invalid":
        return f"not valid JSON: {item['ctx']['error']}"
    return str(item["msg"])


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    if status == http.HTTPStatus.BAD_REQUEST:
        # The framework's answer to a body that it cannot decode (not UTF-8, nested too deeply): bad input too.
        error_of_body = _field_error(("body",), "json_invalid", "the body is not valid JSON")
        return _invalid(path, "invalid-request", TABLE[0][3], [error_of_body], 1)
    slug, title = HTTP_PROBLEMS[status]
    headers = dict(error.headers or {})
    if status == http.HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request)) or headers.get("Allow", "")
    detail = error.detail if isinstance(error, EdgeError) else title
    return problem_response(path, status, slug, title, detail, headers=headers)


def _allowed_methods(request: Request) -> list[str]:
    """All methods of all routes at the path: the router itself names those of the first match only.

    A path that is written out is not also one with a parameter (OpenAPI, "Path Templating Matching").
    """
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    written_out = paths.get(request.url.path)
    if written_out is not None:
        return sorted(method.upper() for method in written_out)
    found = {
        method.upper()
        for template, operations in paths.items()
        if compile_path(template)[0].match(request.url.path)
        for method in operations
    }
    return sorted(found)
