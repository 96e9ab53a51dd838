"""Who may call: API keys in a header, by scope; in browsers also in a cookie."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader

from app.db.session import Database
from app.errors import Forbidden, Unauthenticated
from app.services.api_keys import any_key, authenticate
from app.settings import LOOPBACK_HOSTS, Settings

Scope = Literal["read", "write"]

KEY_COOKIE: Final = "paraplan_key"
"""Set by the sign-in page; HttpOnly and SameSite=Strict."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
"""They change nothing (RFC 9110, section 9.2.1)."""

API_KEY_HEADER: Final = APIKeyHeader(
    name="X-API-Key",
    scheme_name="ApiKey",
    description="A key made with `create-key`. Not needed on loopback as long as no key exists.",
    auto_error=False,
)


def identify(request: Request, presented: str | None, scope: Scope) -> str:
    """The key's prefix, or the client's address where no key is needed. Raises Unauthenticated, Forbidden."""
    database: Database = request.app.state.database
    settings: Settings = request.app.state.settings
    if presented is None:
        if settings.host not in LOOPBACK_HOSTS or any_key(database):
            raise Unauthenticated
        return request.client.host if request.client else "local"
    key = authenticate(database, presented)
    if key is None:
        raise Unauthenticated
    if scope not in key.scopes:
        raise Forbidden(scope)
    return key.prefix


def presented_key(request: Request, header: Annotated[str | None, Security(API_KEY_HEADER)]) -> str | None:
    """The key of the header. Of the cookie only where nothing changes: a page of another site cannot use it then."""
    if header is None and request.method in SAFE_METHODS:
        return request.cookies.get(KEY_COOKIE)
    return header


PresentedKey = Annotated[str | None, Depends(presented_key)]
