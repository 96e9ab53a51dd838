"""Uploads wait for their turn, and the other endpoints do not wait for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.uploads import UPLOADS_AT_ONCE
from app.api.v1 import memory_snapshots

UPLOADS = 60  # more than there are threads for synchronous endpoints


def test_uploads_take_turns_and_leave_threads_to_others(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, at_once, most = threading.Lock(), 0, 0
    full, release = threading.Event(), threading.Event()

    def explain(_: Any) -> dict[str, Any]:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if at_once == UPLOADS_AT_ONCE:
                full.set()
        release.wait(30)
        with lock:
            at_once -= 1
        empty = {"peak_allocated_gib": 0.0, "peak_reserved_gib": 0.0, "out_of_memory": False}
        return empty | {"devices": [], "allocator_settings": {}}

    monkeypatch.setattr(memory_snapshots, "explain_snapshot", explain)

    def send(_: int) -> int:
        return client.post("/v1/memory-snapshots", files={"file": ("x", b"x")}).status_code

    with ThreadPoolExecutor(UPLOADS) as pool:
        sent = [pool.submit(send, index) for index in range(UPLOADS)]
        try:
            assert full.wait(30)
            assert client.get("/v1/catalog/frameworks").status_code == 200
        finally:
            release.set()
        assert {answer.result() for answer in sent} == {200}
    assert most == UPLOADS_AT_ONCE
