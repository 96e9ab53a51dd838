"""What endpoints depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request

from app.db.base import IDENTIFIER
from app.db.session import Database
from app.errors import HTTP_PROBLEMS, CrossSite, UnsupportedMedia
from app.ratelimit import RateLimiter
from app.schemas import examples
from app.schemas.base import NoQuery
from app.security import PresentedKey, Scope, identify
from app.services.runs import RunNotFound
from app.services.searches import SearchNotFound, SearchService

_PROBLEMS: Final = {
    401: "A key is needed.",
    403: "The key lacks a scope.",
    404: "There is no such thing.",
    409: "The state does not allow it.",
    413: "The body is too large.",
    415: "The body is not of the media type that the operation takes.",
    422: "The request breaks a rule; `errors` names the fields.",
    429: "The rate limit is used up; see `Retry-After`.",
    500: "A fault of the service.",
    503: "The database does not answer; see `Retry-After`.",
}
_OTHER_PROBLEMS: Final = {
    409: ("idempotency-conflict", "The idempotency key was used for another request"),
    500: ("internal-error", "Internal error"),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of the problems that an operation answers."""
    return {
        status: {
            "description": _PROBLEMS[status],
            "content": {
                "application/problem+json": {
                    "schema": {"$ref": "#/components/schemas/ProblemDetails"},
                    "example": examples.PROBLEM if status == 422 else _example(status),
                }
            },
        }
        for status in statuses
    }


def _example(status: int) -> dict[str, Any]:
    """One problem of this status, as `errors` words it."""
    slug, title = _OTHER_PROBLEMS.get(status) or HTTP_PROBLEMS[status]
    return {
        "type": f"urn:paraplan:problem:{slug}",
        "title": title,
        "status": status,
        "detail": _PROBLEMS[status],
        "instance": "/v1/searches",
    }


@dataclass(frozen=True)
class Guard:
    """Every operation under `/v1`: a key with the scope where keys are needed, and the caller's rate limit."""

    scope: Scope

    def __call__(self, request: Request, presented: PresentedKey) -> None:
        """Let the request pass, or raise."""
        limiter: RateLimiter = request.app.state.rate_limiter
        limiter.hit(identify(request, presented, self.scope))


def json_body(request: Request) -> None:
    """The body is declared to be JSON. A browser cannot send that across sites without asking first."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMedia


def multipart_body(request: Request) -> None:
    """The body is declared to be a form with a file, and no page of another site sends it.

    Browsers send forms across sites without asking first, but say so (Sec-Fetch-Site, W3C Fetch Metadata).
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise UnsupportedMedia("multipart/form-data")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin", "same-site"):
        raise CrossSite


def search_service(request: Request) -> SearchService:
    """The use cases on searches."""
    service: SearchService = request.app.state.searches
    return service


def search_id(
    id: Annotated[str, Path(description="The search's id, as `POST searches` answered it.")],
) -> str:
    """An id as this service makes them; anything else names no search."""
    if not IDENTIFIER.fullmatch(id):
        raise SearchNotFound(id)
    return id


def runs_database(request: Request) -> Database:
    """Where runs are logged."""
    database: Database = request.app.state.database
    return database


def run_id(
    id: Annotated[str, Path(description="The run's id, as `POST runs` answered it.")],
) -> str:
    """An id as this service makes them; anything else names no run."""
    if not IDENTIFIER.fullmatch(id):
        raise RunNotFound(id)
    return id


CanRead: Final = Depends(Guard("read"))
CanWrite: Final = Depends(Guard("write"))
JsonBody: Final = Depends(json_body)
MultipartBody: Final = Depends(multipart_body)
Searches = Annotated[SearchService, Depends(search_service)]
SearchId = Annotated[str, Depends(search_id)]
RunsDatabase = Annotated[Database, Depends(runs_database)]
RunId = Annotated[str, Depends(run_id)]
NoParameters = Annotated[NoQuery, Query()]
