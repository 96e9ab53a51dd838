"""`memory-snapshots`: a file in, figures and advice out; a hostile file is a problem of the request."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.app.memory_snapshots.allocator import MIB, Allocator


def post(client: TestClient, content: bytes, **form: Any) -> Any:
    return client.post("/v1/memory-snapshots", files={"file": ("snapshot.pickle", content)}, data=form)


def snapshot() -> bytes:
    allocator = Allocator()
    allocator.reserve(1024 * MIB)
    for _ in range(3):
        allocator.allocate(300 * MIB)
    allocator.fail(400 * MIB, 8 * MIB)
    return pickle.dumps(allocator.snapshot())


def test_answers_figures_and_advice(client: TestClient) -> None:
    answer = post(client, snapshot())
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["peak_reserved_gib"] == 1.0
    assert body["peak_allocated_gib"] == pytest.approx(900 / 1024)
    [device] = body["devices"]
    assert device["out_of_memory"]["missing_gib"] == pytest.approx((400 - 8 - 124) / 1024)
    assert device["sites"][0]["frames"] == ["train.py:12:main"]


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_hostile_pickle_is_refused_and_runs_nothing(client: TestClient, tmp_path: Path) -> None:
    answer = post(client, pickle.dumps({"segments": [Hostile(tmp_path / "ran")]}))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    [error] = answer.json()["errors"]
    assert error["loc"] == ["body", "file"]
    assert error["code"] == "pickle_not_plain"
    assert "nothing of the file was run" in error["message"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({"segments": 3})])
def test_what_is_no_snapshot_is_refused(client: TestClient, content: bytes) -> None:
    answer = post(client, content)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "file"]


def test_the_file_is_required_and_alone(client: TestClient) -> None:
    empty = client.post("/v1/memory-snapshots", files={"other": ("", b"")}, data={})
    assert empty.json()["errors"][0]["loc"] == ["body", "other"]
    text = client.post("/v1/memory-snapshots", files={"file": (None, b"text")})
    assert (text.status_code, text.json()["errors"][0]["code"]) == (422, "file_type")
    answer = post(client, snapshot(), device="0")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "device"]


def test_a_form_that_is_none(client: TestClient) -> None:
    headers = {"content-type": "multipart/form-data"}
    answer = client.post("/v1/memory-snapshots", content=b"--x", headers=headers)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert (error["loc"], error["code"]) == (["body"], "multipart_invalid")


def test_media_types_and_other_sites(client: TestClient) -> None:
    assert client.post("/v1/memory-snapshots", json={}).status_code == 415
    files = {"file": ("snapshot.pickle", snapshot())}
    assert client.post("/v1/memory-snapshots", files=files, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_a_key_is_needed_before_the_form_is_looked_at(sqlite_url: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with TestClient(create_app(Settings(database_url=sqlite_url, host="0.0.0.0"))) as client:
        assert client.post("/v1/memory-snapshots", content=b"junk", headers=headers).status_code == 401


def test_too_large_a_file(migrated_sqlite: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{migrated_sqlite}", rate_limit="", max_upload_bytes=1000)
    with TestClient(create_app(settings)) as client:
        answer = post(client, bytes(2000))
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
