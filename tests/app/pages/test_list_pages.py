"""Lists as pages: searches, runs, versions; errors as pages."""

from __future__ import annotations

import re

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.db.models import MemoryModel
from app.schemas import examples
from tests.app.learned_versions import store_version, version_of
from tests.app.trainings import GROUPING, REPORT, FakeTrain
from tests.http_service import Work


def created(client: TestClient, **changes: object) -> str:
    answer = client.post("/v1/searches", json=examples.SEARCH | changes)
    assert answer.status_code == 202
    identifier: str = answer.json()["id"]
    return identifier


def next_address(page: str) -> str | None:
    found = re.search(r'rel="next" href="([^"]+)"', page)
    return None if found is None else found[1].replace("&amp;", "&")


class TestSearches:
    def test_pages_keep_the_filters(self, client: TestClient) -> None:
        ids = [created(client, labels={"team": team}) for team in ("a", "b", "a", "a")]
        seen, address = [], "/searches?status=queued&label=team%3Da&limit=2"
        while address:
            page = client.get(address).text
            seen += re.findall(r'href="/searches/([0-9a-f-]{36})"', page)
            address = next_address(page) or ""
        assert seen == [ids[3], ids[2], ids[0]]

    def test_an_empty_filter_is_none(self, client: TestClient) -> None:
        created(client)
        assert client.get("/searches?status=&label=").text.count('class="status queued"') == 1
        assert "none that match" in client.get("/searches?status=failed&label=").text

    def test_cancel(self, client: TestClient) -> None:
        identifier = created(client)
        assert client.post(f"/searches/{identifier}/cancel").url.path == f"/v1/searches/{identifier}/report"
        assert client.get(f"/v1/searches/{identifier}").json()["status"] == "cancelled"

    def test_what_failed_says_why(self, client: TestClient, work: Work) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("secret internals")

        identifier = created(client)
        work(solve=fail)
        page = client.get(f"/searches/{identifier}")
        assert page.url.path == f"/v1/searches/{identifier}/report"
        assert "failed" in page.text
        assert "secret" not in page.text


class TestRuns:
    def test_lists_and_filters(self, client: TestClient) -> None:
        client.post("/v1/runs", json=[examples.RUN, examples.RUN_OUT_OF_MEMORY]).raise_for_status()
        page = client.get("/runs?source=&framework=").text
        assert page.count('<td><a href="/v1/runs/') == 2
        assert page.count("ran out of memory") == 1
        assert "none that match" in client.get("/runs?gpu=l4-24gb").text


class TestVersions:
    def test_before_and_after_training(self, client: TestClient, work: Work) -> None:
        assert "There are none yet" in client.get("/memory-models").text
        client.post("/v1/memory-models").raise_for_status()
        assert "queued" in client.get("/memory-models/1").text
        work(train=FakeTrain())
        assert "Version 1" in client.get("/memory-models").text
        assert client.get("/memory-models/1").status_code == 200

    def test_reliability_and_learning_curve(self, client: TestClient, http_app: FastAPI) -> None:
        reliability = [{"probability": 0.05, "observed": 0.0123}, {"probability": 0.5, "observed": 0.6}]
        judged = GROUPING | {"reliability": reliability}
        line = {"family": "megatron", "median_error": 0.0777, "analytical_median_error": 0.2}
        report = REPORT | {
            "candidate": {"own_run": None, "model_shape": None, "source": judged},
            "learning_curve": [line | {"own_runs": 0}, line | {"own_runs": 5}],
        }
        store_version(http_app.state.database, 1, version_of())
        with http_app.state.database.write() as session:
            session.execute(update(MemoryModel).values(report=report))
        page = client.get("/memory-models/1").text
        assert page.count("<svg") == 2
        assert page.count('role="img"') == 2
        assert " style=" not in page
        assert "<td>1.2%</td>" in page
        assert page.count("<td>7.8%</td>") == 2


class TestErrors:
    def test_are_pages_with_the_status_of_the_api(self, client: TestClient) -> None:
        for path in ("/searches/nope", "/memory-models/99", "/searches?cursor=x", "/runs?framework=x", "/?x=1"):
            page = client.get(path)
            assert page.status_code in (404, 422)
            assert page.headers["content-type"].startswith("text/html")
            assert "script-src 'self'" in page.headers["content-security-policy"]

    def test_every_link_leads_somewhere(self, client: TestClient, http_app: FastAPI) -> None:
        for address in re.findall(r'(?:href|src)="(/[^"]*)"', client.get("/").text):
            assert client.get(address).status_code == 200, address
