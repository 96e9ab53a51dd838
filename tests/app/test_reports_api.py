"""The report over HTTP, of plans that a real search found."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.report.wording import plain
from search.launch.targets import TARGETS
from tests.app.test_launch_api import SMALL
from tests.app.test_searches_api import UNKNOWN, failing
from tests.http_service import Work

HOSTILE = "</script><img src=x onerror=alert(1)>"


def ended(client: TestClient, work: Work, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Id and result of a search that was run."""
    identifier = client.post("/v1/searches", json=SMALL | changes).json()["id"]
    work()
    return identifier, client.get(f"/v1/searches/{identifier}").json()["result"]


class TestReport:
    def test_the_answer_stands_first(self, client: TestClient, work: Work) -> None:
        identifier, result = ended(client, work)
        answer = client.get(f"/v1/searches/{identifier}/report")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        html = answer.text
        plan = result["plans"][0]
        memory = plan["memory"]
        head, rest = html.split('<section id="memory">')
        assert f"{memory['peak_gib']:.1f} of {memory['capacity_gib']:.1f} GiB" in head
        assert f"up to {memory['required_upper_gib']:.1f} GiB at 90 %" in head
        assert f"{plan['time']['step_seconds']:.1f} s" in head
        assert f"{plan['cost']['days']:,.0f}" in head
        assert "no price was given" in head
        assert result["verdict"] in head
        for alternative in plan["alternatives"]:
            assert alternative["change"] in rest
        for assumption in result["assumptions"]:
            assert assumption.split("'")[0].split(">")[0].split("&")[0] in rest
        for target in TARGETS["megatron-lm"]:
            assert f"<h3>{target}</h3>" in rest

    def test_asks_nothing_of_any_host(self, client: TestClient, work: Work) -> None:
        identifier, _ = ended(client, work)
        answer = client.get(f"/v1/searches/{identifier}/report")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "src=" not in answer.text
        assert len(answer.content) < 1_000_000

    def test_labels_are_text(self, client: TestClient, work: Work) -> None:
        identifier, _ = ended(client, work, labels={"team": HOSTILE})
        html = client.get(f"/v1/searches/{identifier}/report").text
        assert HOSTILE not in html
        assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in html

    def test_every_cluster_size_with_its_price(self, client: TestClient, work: Work) -> None:
        identifier, result = ended(
            client,
            work,
            cluster={"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "usd_per_gpu_hour": 2.5},
            nodes_options=[1, 2],
        )
        html = client.get(f"/v1/searches/{identifier}/report").text
        rows = html.split('<section id="sizes">')[1].split("</section>")[0]
        for size in result["sizes"]:
            assert f'<th scope="row" class="short">{size["nodes"]} node{"s" if size["nodes"] > 1 else ""}</th>' in rows
            assert f"{size['usd']:,.0f}" in rows
        assert f"{result['plans'][0]['cost']['usd']:,.0f} USD" in html
        assert "on 1 or 2 × h100-sxm5-80gb" in html

    def test_a_measured_search_shows_its_runs(self, client: TestClient, work: Work) -> None:
        identifier, _ = ended(client, work, mode="measured", budget={"trials": 2, "seconds": 60})
        asked = client.post(f"/v1/searches/{identifier}/trials").json()
        told = {"measured": {"step_seconds": asked["estimate"]["time"]["step_seconds"] * 1.25}}
        client.post(f"/v1/searches/{identifier}/trials/{asked['trial']}", json=told)
        html = client.get(f"/v1/searches/{identifier}/report").text
        section = html.split('<section id="measured">')[1].split("</section>")[0]
        assert "1 of 1 runs told, of 2 that may be asked for." in section
        assert '<td class="number">1.25</td>' in section

    def test_what_a_target_cannot_say_is_shown(self, client: TestClient, work: Work) -> None:
        identifier, result = ended(
            client, work, frameworks=["fsdp2"], space={"pipeline_parallel_size": [2], "offload": ["none"]}
        )
        rank = result["plans"][0]["rank"]
        html = client.get(f"/v1/searches/{identifier}/report").text
        answers = {
            target: client.get(f"/v1/searches/{identifier}/plans/{rank}/launch?target={target}")
            for target in TARGETS["fsdp2"]
        }
        assert 409 in {answer.status_code for answer in answers.values()}
        for target, answer in answers.items():
            part = html.split(f"<h3>{target}</h3>")[1].split("<h3>")[0].split("</section>")[0]
            if answer.status_code == 409:
                for error in answer.json()["errors"]:
                    assert f"<li><code>{error['loc'][-1]}</code>" in part
            else:
                assert "no setting" not in part

    def test_the_strategy_run_today_is_compared(self, client: TestClient, work: Work) -> None:
        current = {"framework": "megatron-lm", "tensor_parallel_size": 8, "activation_checkpointing": "full"}
        identifier, result = ended(client, work, current=current)
        html = client.get(f"/v1/searches/{identifier}/report").text
        section = html.split('<section id="current">')[1].split("</section>")[0]
        assert result["current"]["gain"] > 0
        assert "The first plan gains" in section
        for name, change in result["current"]["changes"].items():
            assert f">{name}</th><td>{plain(change['from'])}</td><td>{plain(change['to'])}</td>" in section

    def test_what_the_strategy_run_today_breaks_is_said(self, client: TestClient, work: Work) -> None:
        current = {"framework": "megatron-lm", "tensor_parallel_size": 3}
        identifier, result = ended(client, work, current=current)
        html = client.get(f"/v1/searches/{identifier}/report").text
        section = html.split('<section id="current">')[1].split("</section>")[0]
        for violation in result["current"]["violations"]:
            assert violation["code"] in section


class TestWithoutAPlan:
    def test_a_search_that_waits_is_a_conflict(self, client: TestClient) -> None:
        identifier = client.post("/v1/searches", json=SMALL).json()["id"]
        answer = client.get(f"/v1/searches/{identifier}/report")
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:paraplan:problem:search-not-ended"

    def test_an_unknown_search_is_not_found(self, client: TestClient) -> None:
        assert client.get(f"/v1/searches/{UNKNOWN}/report").status_code == 404

    def test_a_failure_is_shown(self, client: TestClient, work: Work) -> None:
        identifier = client.post("/v1/searches", json=SMALL).json()["id"]
        work(failing)
        error = client.get(f"/v1/searches/{identifier}").json()["error"]
        html = client.get(f"/v1/searches/{identifier}/report").text
        assert '<section id="answer" class="alarm">' in html
        assert error["title"] in html

    def test_a_cancelled_search_says_so(self, client: TestClient) -> None:
        identifier = client.post("/v1/searches", json=SMALL).json()["id"]
        client.post(f"/v1/searches/{identifier}/cancel")
        assert "It was cancelled." in client.get(f"/v1/searches/{identifier}/report").text

    def test_where_nothing_fits_the_verdict_stands_first(self, client: TestClient, work: Work) -> None:
        identifier, result = ended(
            client,
            work,
            model={"preset": "gpt-2-xl"},
            cluster={"nodes": 1, "gpus_per_node": 1, "gpu": "rtx-4090-24gb"},
            workload={"sequence_length": 1024, "global_batch_size": 64},
        )
        assert result["plans"] == []
        html = client.get(f"/v1/searches/{identifier}/report").text
        answer = unescape(html.split('<section id="answer" class="alarm">')[1].split("</section>")[0])
        missed, *remedies = re.split(r"(?<=\.) (?=It would)|; (?=or with )", result["verdict"])
        assert f'<p class="headline">{missed}</p>' in answer
        assert len(remedies) > 1
        for remedy in remedies:
            assert f"<li>{remedy}</li>" in answer


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_only_read(client: TestClient, method: str) -> None:
    assert getattr(client, method)(f"/v1/searches/{UNKNOWN}/report").status_code == 405
