"""Bounds the bytes of a body while it is read, whether or not it says its length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BodyTooLarge

FORM_BYTES: Final = 2 * 2**20
"""Of a form beside its file: texts, of which the framework takes one MiB each, and boundaries."""
MOST_DISCARDED_BYTES: Final = 2**30
"""Of a body that nobody reads. Whoever sends more is cut off without an answer."""


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
        body = _Body(Headers(scope=scope), receive, self._limits_bytes.get(scope["path"], self._default_bytes))

        async def send_after_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await body.discard()
            await send(message)

        await self._app(scope, body.read, send_after_body)


class _Body:
    """The body of one request."""

    def __init__(self, headers: Headers, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        announced = headers.get("content-length", "0")
        self._too_large = announced.isascii() and announced.isdigit() and int(announced) > limit_bytes
        # A client that expects "100 Continue" sends nothing before somebody reads.
        self._coming = (announced != "0" or "transfer-encoding" in headers) and "expect" not in headers
        self._seen_bytes = 0

    async def read(self) -> Message:
        """The next part; raises BodyTooLarge."""
        if self._too_large:
            raise BodyTooLarge(self._limit_bytes)
        message = await self._next()
        if self._seen_bytes > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        return message

    async def discard(self) -> None:
        """Read what is left: a client that is still sending would be reset, and never see an early answer."""
        while self._coming and self._seen_bytes < MOST_DISCARDED_BYTES:
            await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        self._seen_bytes += len(message.get("body", b""))
        self._coming = message.get("more_body", False)
        return message
