"""Who may see a page and send a form: keys in a cookie, and forms of other sites."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from app.security import KEY_COOKIE
from app.services.api_keys import create_key
from app.settings import Settings

PAGES = ["/", "/searches", "/runs", "/memory-models", "/memory-models/1", "/searches/nope"]
FORM = {
    "model_preset": "llama-3-8b",
    "cluster_preset": "dgx-h100",
    "nodes": "1",
    "sequence_length": "4096",
    "global_batch_size": "64",
    "current_format": "deepspeed",
}


@pytest.fixture
def key(http_app: FastAPI) -> str:
    return create_key(http_app.state.database, "person", ["read", "write"], None)


class TestSignIn:
    @pytest.mark.parametrize("path", PAGES)
    def test_every_page_asks_for_a_key(self, client: TestClient, key: str, path: str) -> None:
        answer = client.get(path)
        assert answer.status_code == 401
        assert f'name="next" value="{path}"' in answer.text

    def test_keeps_the_key_from_scripts_and_other_sites(self, client: TestClient, key: str) -> None:
        answer = client.post("/sign-in", data={"key": f" {key} ", "next": "/runs"}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        cookie = answer.headers["set-cookie"]
        assert cookie == f"{KEY_COOKIE}={key}; HttpOnly; Path=/; SameSite=strict"
        assert [client.get(path).status_code for path in PAGES[:4]] == [200] * 4
        assert client.get("/v1/searches").status_code == 200
        client.post("/sign-out")
        assert client.get("/runs").status_code == 401

    def test_over_tls_the_cookie_stays_there(self, http_app: FastAPI, key: str) -> None:
        with TestClient(http_app, base_url="https://testserver") as client:
            answer = client.post("/sign-in", data={"key": key}, follow_redirects=False)
        assert "; Secure" in answer.headers["set-cookie"]

    @pytest.mark.parametrize("presented", ["", "nonsense", "pp_00000000_0", "pp_é_\x00"])
    def test_wrong_keys(self, client: TestClient, key: str, presented: str) -> None:
        answer = client.post("/sign-in", data={"key": presented})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "This key is not valid" in answer.text

    @pytest.mark.parametrize("elsewhere", ["https://evil.example", "//evil.example", "/\\evil.example", "/a\nb", ""])
    def test_leads_nowhere_else(self, client: TestClient, key: str, elsewhere: str) -> None:
        answer = client.post("/sign-in", data={"key": key, "next": elsewhere}, follow_redirects=False)
        assert answer.headers["location"] == "/"

    def test_a_form_that_was_filled_in_is_not_lost(self, client: TestClient, key: str) -> None:
        answer = client.post("/", data=FORM | {"nodes": "77"})
        assert answer.status_code == 401
        assert 'name="nodes" value="77"' in answer.text
        assert "nothing here is lost" in answer.text

    def test_a_key_that_may_only_read(self, client: TestClient, http_app: FastAPI) -> None:
        reader = create_key(http_app.state.database, "reader", ["read"], None)
        client.post("/sign-in", data={"key": reader})
        assert client.get("/").status_code == 200
        answer = client.post("/", data=FORM)
        assert (answer.status_code, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")


class TestCookieOutsidePages:
    def test_changes_nothing(self, client: TestClient, key: str) -> None:
        client.cookies.set(KEY_COOKIE, key)
        assert client.get("/v1/runs").status_code == 200
        assert client.post("/v1/memory-models").status_code == 401
        assert client.delete("/v1/runs/nope").status_code == 401


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://testserver:81"},
        ],
    )
    @pytest.mark.parametrize("path", ["/", "/read", "/searches/nope/cancel", "/sign-in", "/sign-out"])
    def test_may_not_send_forms(self, client: TestClient, path: str, headers: dict[str, str]) -> None:
        assert client.post(path, data=FORM, headers=headers).status_code == 403
        assert client.get("/v1/searches").json()["items"] == []

    @pytest.mark.parametrize(
        "headers", [{}, {"Sec-Fetch-Site": "same-origin", "Origin": "null"}, {"Origin": "http://testserver"}]
    )
    def test_our_own_forms_are_taken(self, client: TestClient, headers: dict[str, str]) -> None:
        assert client.post("/", data=FORM, headers=headers, follow_redirects=False).status_code == 303


class TestLimits:
    def test_pages_count(self, http_app: FastAPI, sqlite_url: str) -> None:
        with TestClient(create_app(Settings(database_url=sqlite_url, rate_limit="2/minute"))) as client:
            answers = [client.get("/runs") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert "retry-after" in answers[2].headers

    def test_bodies_are_bounded(self, client: TestClient) -> None:
        answer = client.post("/", data=FORM | {"hf_config": "x" * 2**20})
        assert (answer.status_code, answer.headers["content-type"]) == (413, "text/html; charset=utf-8")
