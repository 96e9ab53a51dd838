"""A body that is refused is still received to its end before the answer goes out: its client has to see the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.body_limit import MOST_DISCARDED_BYTES, BodyLimit
from app.errors import BodyTooLarge

LIMIT = 10
CHUNKED = {"transfer-encoding": "chunked"}


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without a look at the body."""
    await Response(status_code=415)(scope, receive, send)


async def read(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body, or that it is too large."""
    try:
        answer = Response(str(len(await Request(scope, receive).body())))
    except BodyTooLarge as error:
        answer = Response(status_code=error.status_code)
    await answer(scope, receive, send)


def exchange(app: ASGIApp, headers: Mapping[str, str], parts: list[bytes]) -> tuple[int, int]:
    """Status of the answer, and how many parts of the body had been received when it began."""
    received = 0
    begun: list[tuple[int, int]] = []

    async def receive() -> Message:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": parts[received - 1], "more_body": received < len(parts)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun.append((message["status"], received))

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}
    asyncio.run(BodyLimit(app, default_bytes=LIMIT, limits_bytes={})(scope, receive, send))
    return begun[0]


@pytest.mark.parametrize("headers", [{"content-length": "12"}, CHUNKED])
def test_a_body_over_the_limit_is_received_before_the_answer(headers: Mapping[str, str]) -> None:
    assert exchange(read, headers, [b"x" * 4] * 3) == (413, 3)


@pytest.mark.parametrize("headers", [{"content-length": "8"}, CHUNKED])
def test_a_body_that_nobody_reads_is_received_before_the_answer(headers: Mapping[str, str]) -> None:
    assert exchange(refuse, headers, [b"x" * 4] * 2) == (415, 2)


def test_a_body_within_the_limit_is_received_once() -> None:
    assert exchange(read, CHUNKED, [b"x" * 5] * 2) == (200, 2)


def test_a_request_without_a_body_is_not_waited_for() -> None:
    assert exchange(refuse, {}, []) == (415, 0)


def test_a_client_that_waits_to_be_asked_for_its_body_is_not_asked() -> None:
    assert exchange(read, {"content-length": "12", "expect": "100-continue"}, []) == (413, 0)


def test_a_body_without_end_is_cut_off() -> None:
    part = bytes(MOST_DISCARDED_BYTES // 2)
    assert exchange(refuse, CHUNKED, [part] * 5) == (415, 2)
