"""Who may see a page and send a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Request

from app.errors import CrossSite, UnsupportedMedia
from app.ratelimit import RateLimiter
from app.security import KEY_COOKIE, SAFE_METHODS, Scope, identify

FORM: Final = "application/x-www-form-urlencoded"
Values = dict[str, list[str]]
"""Of a form, by field."""


def refuse_other_sites(request: Request) -> None:
    """Raise CrossSite for a form that a page of another origin sends, which browsers let it do without asking.

    Browsers say so themselves (Sec-Fetch-Site, W3C Fetch Metadata), over plain HTTP to another host only by Origin.
    Neither is there: no browser sends it, so that no cookie of a person comes with it unnoticed.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise CrossSite
        return
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise CrossSite


@dataclass(frozen=True)
class PageGuard:
    """Every page: a key with the scope where keys are needed, by cookie or header, and the caller's rate limit."""

    scope: Scope

    def __call__(self, request: Request) -> None:
        """Let the request pass, or raise."""
        if request.method not in SAFE_METHODS:
            refuse_other_sites(request)
        presented = request.headers.get("x-api-key") or request.cookies.get(KEY_COOKIE)
        limiter: RateLimiter = request.app.state.rate_limiter
        limiter.hit(identify(request, presented, self.scope))


async def form_values(request: Request) -> Values:
    """The fields of a form, as they were typed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise UnsupportedMedia(FORM)
    values: Values = {}
    async with request.form() as form:
        for name, value in form.multi_items():
            values.setdefault(name, []).append(str(value))
    return values


MaySee: Final = Depends(PageGuard("read"))
MayAct: Final = Depends(PageGuard("write"))
FormValues = Annotated[Values, Depends(form_values)]
