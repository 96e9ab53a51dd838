"""The start page over HTTP: a form that searches, keeps what was typed, and says beside each input what is wrong."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from app.schemas import examples
from tests.http_service import Work

FILLED = {
    "model_preset": "llama-3-8b",
    "cluster_preset": "dgx-h100",
    "nodes": "1",
    "sequence_length": "4096",
    "global_batch_size": "64",
    "seconds": "2",
    "current_format": "deepspeed",
}
DS_CONFIG = json.dumps(
    {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "mystery": 1,
    }
)


def begun(client: TestClient, values: dict[str, str]) -> dict[str, object]:
    """Send the form, which has to be taken; answers the search."""
    answer = client.post("/", data=values, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    search: dict[str, object] = client.get(f"/v1{answer.headers['location']}").json()
    return search


def messages(page: str, name: str) -> list[str]:
    """What is said beside an input."""
    return re.findall(rf'<p class="error" id="{name}-error-\d+">(.*?)</p>', page)


class TestForm:
    def test_offers_the_catalog(self, client: TestClient) -> None:
        page = client.get("/").text
        for path, key in (("models", "name"), ("clusters", "preset")):
            for item in client.get(f"/v1/catalog/{path}").json()["items"]:
                assert f'<option value="{item[key]}"' in page

    def test_searches(self, client: TestClient, work: Work) -> None:
        search = begun(client, FILLED | {"labels": "team=a, run=7"})
        assert search["labels"] == {"team": "a", "run": "7"}
        watched = client.get(f"/searches/{search['id']}")
        assert '<noscript><meta http-equiv="refresh"' in watched.text
        work()
        ended = client.get(f"/searches/{search['id']}")
        assert ended.url.path == f"/v1/searches/{search['id']}/report"
        assert "Fastest of" in ended.text
        assert 'href="/searches/' in client.get("/").text

    def test_a_config_json_takes_the_place_of_the_preset(self, client: TestClient) -> None:
        begun(client, FILLED | {"hf_config": json.dumps(examples.HF_MODEL["hf_config"])})
        assert "llama on 1 × dgx-h100" in re.sub(r"\s+", " ", client.get("/searches").text)

    def test_a_launch_file_is_the_current_strategy(self, client: TestClient, work: Work) -> None:
        search = begun(client, FILLED | {"current_text": DS_CONFIG})
        work()
        current = client.get(f"/v1/searches/{search['id']}").json()["result"]["current"]
        assert (current["strategy"]["framework"], current["strategy"]["zero_stage"]) == ("deepspeed", 3)

    def test_a_launch_file_is_read_first(self, client: TestClient) -> None:
        page = client.post("/read", data=FILLED | {"current_text": DS_CONFIG}).text
        assert "<dt>zero_stage</dt><dd>3</dd>" in page
        assert 'name="global_batch_size" value="256"' in page
        assert "Not understood, though it may matter: mystery" in page


class TestWrongInput:
    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("nodes", "many", "valid integer"),
            ("nodes", "", "Field required"),
            ("global_batch_size", "0", "greater than or equal to 1"),
            ("training_tokens", "NaN", "number"),
            ("model_preset", "llama-9", "llama-9"),
            ("hf_config", "{", "not valid JSON"),
            ("hf_config", "[]", "not a JSON object"),
            ("hf_config", '{"model_type": "unheard-of"}', "unheard-of"),
            ("cluster_json", '{"nodes": 1, "gpus_per_node": 8, "gpu": "h1"}', "h1"),
            ("cluster_json", '{"nodes": 0, "gpus_per_node": 8, "gpu": "l4-24gb"}', "greater than or equal to 1"),
            ("objective", "cost", "usd_per_gpu_hour"),
            ("current_text", "{", "JSON"),
            ("labels", "a b=c", "match"),
            ("frameworks", "horovod", "Input should be"),
        ],
    )
    def test_is_named_beside_its_input_and_kept(self, client: TestClient, name: str, value: str, said: str) -> None:
        answer = client.post("/", data=FILLED | {name: value})
        assert answer.status_code == 422
        assert said in " ".join(messages(answer.text, name))
        assert f'href="#{name}"' in answer.text
        kept = FILLED | ({name: value} if name != "frameworks" else {})
        for field, typed in kept.items():
            if typed and field not in ("hf_config", "cluster_json", "current_text"):
                shown = f'value="{typed}" selected' if f'<select id="{field}"' in answer.text else f'value="{typed}"'
                assert shown in answer.text
        assert client.get("/v1/searches").json()["items"] == []

    def test_everything_that_is_wrong_is_said_at_once(self, client: TestClient) -> None:
        page = client.post(
            "/", data=FILLED | {"nodes": "x", "hf_config": "{", "current_text": "{", "seconds": "0"}
        ).text
        wrong = {name for name in ("nodes", "hf_config", "current_text", "seconds", "plans") if messages(page, name)}
        assert wrong == {"nodes", "hf_config", "current_text", "seconds"}

    def test_markup_stays_text(self, client: TestClient) -> None:
        answer = client.post("/", data=FILLED | {"labels": '"><script>alert(1)</script>'})
        assert answer.status_code == 422
        assert "<script>alert" not in answer.text

    @pytest.mark.parametrize("media_type", ["application/json", "multipart/form-data; boundary=x", "text/plain"])
    def test_other_media_types(self, client: TestClient, media_type: str) -> None:
        assert client.post("/", content=b"{}", headers={"Content-Type": media_type}).status_code == 415
