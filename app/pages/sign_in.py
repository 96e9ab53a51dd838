"""A key for a browser: kept in a cookie that no script reads and no other site sends."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from app.errors import Unauthenticated
from app.pages.access import FormValues, refuse_other_sites
from app.pages.rendering import PageRoute, render
from app.ratelimit import RateLimiter
from app.security import KEY_COOKIE, identify

router = APIRouter(route_class=PageRoute)


def _limited(request: Request) -> None:
    limiter: RateLimiter = request.app.state.rate_limiter
    limiter.hit(request.client.host if request.client else "local")


@router.get("/sign-in", dependencies=[Depends(_limited)])
def sign_in_page(request: Request) -> Response:
    """Where a key is given."""
    return render(request, "sign_in.html", next_path="/", message=None)


@router.post("/sign-in", dependencies=[Depends(_limited), Depends(refuse_other_sites)])
def sign_in(request: Request, values: FormValues) -> Response:
    """Keep a valid key until the browser is closed, and go where the person wanted to."""
    key, next_path = values.get("key", [""])[0].strip(), _own_path(values.get("next", ["/"])[0])
    try:
        identify(request, key, "read")
    except Unauthenticated:
        message = "This key is not valid, or no longer."
        return render(request, "sign_in.html", status=401, next_path=next_path, message=message)
    answer = RedirectResponse(next_path, 303)
    answer.set_cookie(KEY_COOKIE, key, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/")
    return answer


@router.post("/sign-out", dependencies=[Depends(refuse_other_sites)])
def sign_out(_: Request) -> Response:
    """Forget the key."""
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(KEY_COOKIE, httponly=True, samesite="strict", path="/")
    return answer


def _own_path(path: str) -> str:
    """A path of this service; a browser takes `//host` and a backslash for other hosts."""
    plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
