"""Bounds the bytes of a body while it is read, whether or not it says its length."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BodyTooLarge


class BodyLimit:
    """ASGI middleware. `limits_bytes` by path; `default_bytes` everywhere else."""

    def __init__(self, app: ASGIApp, *, default_bytes: int, limits_bytes: Mapping[str, int]) -> None:
        self._app = app
        self._default_bytes = default_bytes
        self._limits_bytes = limits_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise BodyTooLarge in whoever reads more than the limit, so that it is answered like every other error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limits_bytes.get(scope["path"], self._default_bytes)
        announced = Headers(scope=scope).get("content-length", "")
        too_large = announced.isascii() and announced.isdigit() and int(announced) > limit
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if too_large:
                raise BodyTooLarge(limit)
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise BodyTooLarge(limit)
            return message

        await self._app(scope, counted, send)
