"""`POST /v1/runs/import`: files in, runs or everything that is missing or wrong out."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from app.schemas.run_imports import CONTEXT
from app.settings import Settings
from tests.app.memory_snapshots.allocator import MIB, Allocator

PATH = "/v1/runs/import"
LOGS = Path(__file__).parents[1] / "data" / "logs"
CLUSTER = {"cluster": {"gpus_per_node": 2, "gpu": "v100-sxm2-32gb"}}
WHOLE: dict[str, Any] = {
    "model": {"preset": "gpt-2-xl"},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "l4-24gb"},
    "workload": {"sequence_length": 1024, "global_batch_size": 8, "precision": "bf16"},
    "strategy": {
        "framework": "ddp",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "zero_stage": 0,
        "micro_batch_size": 8,
        "activation_checkpointing": "none",
    },
}
"""What a memory snapshot leaves open."""


def send(client: TestClient, content: bytes, context: Any = None, **fields: str) -> Any:
    data = fields | ({} if context is None else {"context": json.dumps(context)})
    return client.post(PATH, files={"file": ("a file", content)}, data=data)


def log(name: str) -> bytes:
    return (LOGS / name).read_bytes()


def errors(answer: Any) -> list[tuple[list[Any], str]]:
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    return [(error["loc"], error["code"]) for error in answer.json()["errors"]]


def count(client: TestClient) -> int:
    return len(client.get("/v1/runs", params={"limit": 100}).json()["items"])


class TestTables:
    @pytest.mark.parametrize("format", ["csv", "jsonl"])
    def test_the_template_imports_as_it_stands(self, client: TestClient, format: str) -> None:
        template = client.get(f"{PATH}/template", params={"format": format})
        assert template.headers["content-disposition"] == f'attachment; filename="runs.{format}"'
        answer = send(client, template.content)
        assert answer.status_code == 201
        assert (answer.json()["format"], answer.json()["runs"]) == (format, 2)
        assert answer.json()["assumptions"] == [f"format left out: recognised as {format}"]
        assert send(client, template.content, format=format).json()["ids"] == answer.json()["ids"]
        assert count(client) == 2

    def test_errors_name_line_and_column_and_nothing_is_logged(self, client: TestClient) -> None:
        template = client.get(f"{PATH}/template").text
        bad = template.replace("fsdp2", "fsdp9").replace("llama-3-70b", "no-such-model")
        answer = send(client, bad.encode())
        assert errors(answer) == [
            (["body", "file", 2, "strategy.framework"], "literal_error"),
            (["body", "file", 3, "model.preset"], "unknown_preset"),
        ]
        assert answer.json()["errors"][0]["message"].startswith("line 2, column strategy.framework: ")
        assert count(client) == 0

    def test_unknown_columns(self, client: TestClient) -> None:
        answer = send(client, b"key,measured.steps\na,1\n", {"model": {"preset": "gpt-2-xl"}})
        assert (["body", "file", 2, "measured.steps"], "extra_forbidden") in errors(answer)

    def test_a_context_completes_each_row(self, client: TestClient) -> None:
        context = {
            "model": {"preset": "gpt-2-xl"},
            "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "a100-sxm4-80gb"},
            "workload": {"sequence_length": 1024},
            "strategy": {"framework": "ddp"},
        }
        rows = b"key,workload.global_batch_size,measured.step_seconds\na,8,1.5\nb,16,2.5\n"
        answer = send(client, rows, context)
        first = client.get(f"/v1/runs/{answer.json()['ids'][0]}").json()
        assert (first["key"], first["workload"]["global_batch_size"]) == ("a", 8)
        answer = send(client, rows, context | {"workload": {"sequence_length": 1024, "global_batch_size": 8}})
        assert errors(answer) == [(["body", "context", "workload", "global_batch_size"], "contradiction")]
        assert "line 3: the file says 16, the context 8" in answer.json()["detail"]

    def test_what_is_wrong_with_the_context_is_said_once_and_there(self, client: TestClient) -> None:
        rows = b"key,model.preset,cluster.nodes,measured.step_seconds\na,gpt-2-xl,1,1.5\nb,gpt-2-xl,1,-1\n"
        context = {
            "cluster": {"gpus_per_node": 8, "gpu": "no-such-gpu"},
            "workload": {"sequence_length": 1024, "global_batch_size": 8},
            "strategy": {"framework": "ddp"},
            "unknown": ["nothing"],
        }
        assert errors(send(client, rows, context, format="csv")) == [
            (["body", "context", "unknown", 0], "unknown_field"),
            (["body", "file", 3, "measured.step_seconds"], "greater_than"),
        ]
        found = errors(send(client, rows.replace(b"-1", b"1"), context | {"unknown": []}, format="csv"))
        assert found == [(["body", "context", "cluster", "gpu"], "unknown_gpu")]

    def test_a_key_of_other_content_is_a_conflict(self, client: TestClient) -> None:
        template = client.get(f"{PATH}/template", params={"format": "jsonl"}).text
        assert send(client, template.encode()).status_code == 201
        answer = send(client, template.replace("2.31", "2.32").encode())
        assert answer.status_code == 409
        assert answer.json()["errors"][0]["loc"] == ["body", "file", 1, "key"]


class TestLogs:
    def test_a_log_and_its_context(self, client: TestClient) -> None:
        answer = send(client, log("megatron_2021.log"), CLUSTER)
        assert answer.status_code == 201
        body = answer.json()
        assert (body["format"], body["runs"]) == ("megatron-lm", 1)
        assert "peaks are those of pipeline stage 0" in body["assumptions"]
        (run_id,) = body["ids"]
        run = client.get(f"/v1/runs/{run_id}").json()
        assert run["measured"] == {
            "peak_allocated_gib": 6.0,
            "peak_reserved_gib": 7.0,
            "peak_device_gib": None,
            "pipeline_stage": 0,
            "step_seconds": 1.305,
            "out_of_memory": None,
        }
        assert run["cluster"]["nodes"] == 2
        assert run["software"] == {"log_format": "megatron-lm"}
        assert send(client, log("megatron_2021.log"), CLUSTER).json()["ids"] == [run_id]
        assert send(client, gzip.compress(log("megatron_2021.log")), CLUSTER).json()["ids"] == [run_id]
        assert count(client) == 1

    def test_each_stage(self, client: TestClient) -> None:
        answer = send(client, log("megatron_2021.log"), CLUSTER | {"key": "mine"}, stages="each")
        runs = [client.get(f"/v1/runs/{run_id}").json() for run_id in answer.json()["ids"]]
        assert [(run["key"], run["measured"]["pipeline_stage"]) for run in runs] == [("mine/0", 0), ("mine/1", 1)]
        assert answer.json()["runs"] == 1

    def test_what_is_missing_is_asked_for_by_name(self, client: TestClient) -> None:
        answer = send(client, log("megatron_2021.log"))
        assert errors(answer) == [
            (["body", "context", "cluster", "nodes"], "missing"),
            (["body", "context", "cluster", "gpus_per_node"], "missing"),
            (["body", "context", "cluster", "gpu"], "missing"),
        ]
        messages = [error["message"] for error in answer.json()["errors"]]
        assert messages[0] == "the log does not say it; put it into context.cluster.nodes (it says 4 GPUs in all)"
        assert count(client) == 0

    def test_a_contradiction_names_both_values(self, client: TestClient) -> None:
        answer = send(client, log("megatron_2021.log"), CLUSTER | {"strategy": {"tensor_parallel_size": 4}})
        assert errors(answer) == [(["body", "context", "strategy", "tensor_parallel_size"], "contradiction")]
        assert "the file says 2, the context 4" in answer.json()["detail"]

    def test_out_of_memory_is_kept_with_its_figures(self, client: TestClient) -> None:
        context = {"cluster": {"gpu": "h100-sxm5-80gb"}, "unknown": ["zero_stage"]}
        answer = send(client, log("out_of_memory.log"), context)
        measured = client.get(f"/v1/runs/{answer.json()['ids'][0]}").json()["measured"]
        assert measured["out_of_memory"] is True
        assert (measured["peak_allocated_gib"], measured["peak_reserved_gib"]) == (75.25, 75.75)

    def test_several_runs_of_a_file_take_one_context_or_one_each(self, client: TestClient) -> None:
        first = {"cluster": {"nodes": 1}, "strategy": {"zero_stage": 3}}
        second = {
            "cluster": {"nodes": 1, "gpu": "h100-sxm5-80gb"},
            "strategy": {"zero_stage": 2},
            "workload": {"precision": "bf16"},
        }
        content = log("torchtitan_two.log")
        answer = send(client, content, first)
        assert errors(answer) == [
            (["body", "context", "cluster", "gpu"], "missing"),
            (["body", "context", "workload", "precision"], "missing"),
        ]
        assert answer.json()["errors"][0]["message"].startswith("run 2 of the file: ")
        assert errors(send(client, content, [first] * 3)) == [(["body", "context"], "wrong_length")]
        answer = send(client, content, [first, second])
        runs = [client.get(f"/v1/runs/{run_id}").json() for run_id in answer.json()["ids"]]
        assert [run["strategy"]["zero_stage"] for run in runs] == [3, 2]
        assert [run["measured"]["step_seconds"] for run in runs] == [2.05, 1.1]

    def test_a_rule_that_a_figure_breaks_is_placed_where_it_came_from(self, client: TestClient) -> None:
        small = {"cluster": {"gpus_per_node": 4, "gpu": "v100-sxm2-16gb"}}
        content = log("megatron_2021.log").replace(b"max allocated: 6144.0", b"max allocated: 26144.0")
        assert errors(send(client, content, small)) == [
            (["body", "file", "measured", "peak_allocated_gib"], "too_large")
        ]
        unknown = {"cluster": {"gpus_per_node": 2, "gpu": "no-such-gpu"}}
        assert errors(send(client, log("megatron_2021.log"), unknown)) == [
            (["body", "context", "cluster", "gpu"], "unknown_gpu")
        ]

    @pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
    def test_every_excerpt_is_recognised_and_asks_by_name(self, client: TestClient, path: Path) -> None:
        found = errors(send(client, path.read_bytes()))
        assert {code for _, code in found} == {"missing"}
        assert all(loc[:2] == ["body", "context"] for loc, _ in found)


class TestSnapshots:
    @staticmethod
    def snapshot(last_events: int | None = None, *, failed: bool = False) -> bytes:
        allocator = Allocator()
        allocator.reserve(1024 * MIB)
        held = [allocator.allocate(300 * MIB) for _ in range(3)]
        for address in held:
            allocator.free(address)
        if failed:
            allocator.fail(4096 * MIB, 8 * MIB)
        return pickle.dumps(allocator.snapshot(last_events))

    @pytest.mark.parametrize("failed", [False, True])
    def test_the_peaks_of_the_history(self, client: TestClient, failed: bool) -> None:
        answer = send(client, self.snapshot(failed=failed), WHOLE)
        assert (answer.status_code, answer.json()["format"]) == (201, "pytorch-memory-snapshot"), answer.text
        measured = client.get(f"/v1/runs/{answer.json()['ids'][0]}").json()["measured"]
        assert (measured["peak_allocated_gib"], measured["peak_reserved_gib"]) == (900 / 1024, 1.0)
        assert measured["out_of_memory"] is (True if failed else None)

    def test_what_is_live_at_the_end_is_no_peak(self, client: TestClient) -> None:
        answer = send(client, self.snapshot(last_events=0), WHOLE)
        assert errors(answer) == [(["body", "file"], "no_history")]

    def test_a_history_that_begins_late_is_noted(self, client: TestClient) -> None:
        answer = send(client, self.snapshot(last_events=4), WHOLE)
        notes = answer.json()["assumptions"]
        assert "memory was in use before the recorded history begins: earlier peaks are not seen" in notes


class TestBadRequests:
    def test_content_of_no_format(self, client: TestClient) -> None:
        assert errors(send(client, b"hello\n")) == [(["body", "format"], "unknown_format")]
        assert errors(send(client, b"hello\n", format="nemo")) == [(["body", "format"], "unknown_format")]
        assert errors(send(client, b"hello\n", format="torchtitan")) == [(["body", "file"], "no_runs")]

    def test_a_hostile_snapshot(self, client: TestClient) -> None:
        found = errors(send(client, b"\x80\x04cos\nsystem\n."))
        assert [loc for loc, _ in found] == [["body", "file"]]

    @pytest.mark.parametrize(
        ("context", "loc", "code"),
        [
            ("{", ["body", "context"], "json_invalid"),
            ('{"key": NaN}', ["body", "context"], "json_invalid"),
            ("[" * 100_000, ["body", "context"], "json_invalid"),
            ("5", ["body", "context"], "object_type"),
            ("[]", ["body", "context"], "too_short"),
            ("[1]", ["body", "context", 0], "object_type"),
            ('{"modell": {}}', ["body", "context", "modell"], "extra_forbidden"),
            ('{"software": ' + '{"a": ' * 40 + "1" + "}" * 41, ["body", "context"], "too_deep"),
        ],
    )
    def test_contexts(self, client: TestClient, context: str, loc: list[Any], code: str) -> None:
        answer = client.post(PATH, files={"file": ("x", log("megatron_2021.log"))}, data={"context": context})
        assert errors(answer) == [(loc, code)]

    def test_forms(self, client: TestClient) -> None:
        file = {"file": ("x", b"x")}
        assert errors(client.post(PATH, files={"other": ("x", b"x")})) == [(["body", "other"], "extra_forbidden")]
        assert errors(client.post(PATH, files=file, data={"stages": "all"})) == [(["body", "stages"], "literal_error")]
        multipart = {"Content-Type": "multipart/form-data; boundary=b"}
        text = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n'
        assert errors(client.post(PATH, content=text, headers=multipart)) == [(["body", "file"], "file_type")]
        assert errors(client.post(PATH, content=b"--b--\r\n", headers=multipart)) == [(["body", "file"], "missing")]
        assert errors(client.post(PATH, content=b"junk", headers=multipart)) == [(["body"], "multipart_invalid")]
        assert errors(client.post(PATH, files=file, params={"a": "1"})) == [(["query", "a"], "extra_forbidden")]

    def test_media_types_and_other_sites(self, client: TestClient) -> None:
        assert client.post(PATH, json={}).status_code == 415
        answer = client.post(PATH, files={"file": ("x", b"x")}, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403

    def test_a_key_is_needed_before_the_form_is_looked_at(self, sqlite_url: str) -> None:
        with TestClient(create_app(Settings(database_url=sqlite_url, host="0.0.0.0"))) as client:
            answer = client.post(PATH, content=b"junk", headers={"Content-Type": "multipart/form-data; boundary=b"})
            assert answer.status_code == 401

    def test_other_methods(self, client: TestClient) -> None:
        answer = client.put(PATH, content=b"x")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    def test_files_over_the_limit(self, settings: Settings) -> None:
        small = create_app(settings.model_copy(update={"max_upload_bytes": 1000}))
        with TestClient(small) as client:
            assert send(client, b"x" * 1001).status_code == 413
            assert send(client, b"x" * 1000).status_code == 422
            assert send(client, b"x" * 3_000_000).status_code == 413


def test_the_example_of_the_documentation_succeeds(client: TestClient, http_app: FastAPI) -> None:
    form = http_app.openapi()["paths"][PATH]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert json.loads(form["properties"]["context"]["example"]) == CONTEXT
    assert form["required"] == ["file"]
    assert send(client, log("megatron_version1.log"), CONTEXT).status_code == 201
