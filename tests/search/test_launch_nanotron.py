"""Target `nanotron`: its YAML against the recorded fields of its config classes, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.strategy import COLUMNS
from cost_models.workload import FineTuning, Workload
from search.launch.job import LaunchJob, NotExpressible
from search.launch.nanotron import WITHOUT_MEANING, config, write
from tests.search.launch_jobs import gpus, launch_job

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "launch" / "nanotron_fields.json").read_text())
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "dict": dict, "list": list}
TOKENS = Workload(4096, 256, training_tokens=1e11)


def plan(model: str = "llama-3-8b", **fields: Any) -> LaunchJob:
    return launch_job(model, framework="nanotron", **fields)


JOBS = {
    "plain": plan(),
    "sharded": plan(workload=TOKENS, zero_stage=1, tensor_parallel_size=2, activation_checkpointing="full"),
    "pipeline": plan("llama-3-70b", cluster=gpus(64), workload=TOKENS, pipeline_parallel_size=8),
    "all-forward": plan(pipeline_parallel_size=2, pipeline_schedule="gpipe", tensor_parallel_size=4),
    "all-reduce": plan(tensor_parallel_size=8, sequence_parallel=False),
    "fp32": plan(workload=Workload(2048, 64, precision="fp32", optimizer="sgd")),
    "fp16": plan(workload=Workload(2048, 64, precision="fp16", optimizer="adam")),
}


def leaves(node: Any, place: str = "") -> Iterator[tuple[str, str, Any]]:
    """Section, key and value of everything in the file."""
    for key, value in node.items():
        yield place, key, value
        below = f"{place}.{key}".lstrip(".")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from leaves(item, below)


@pytest.mark.parametrize("name", JOBS)
def test_every_key_is_a_field_of_its_type(name: str) -> None:
    files = {file.path: file.content for file in write(JOBS[name]).files}
    read = yaml.safe_load(files["nanotron.yaml"])
    assert read == config(JOBS[name])
    for section, key, value in leaves(read):
        kind = RECORDED["fields"][section][key]
        if isinstance(kind, list):
            assert value in kind, (section, key)
        elif not (isinstance(value, str) and value.startswith("${")):
            assert isinstance(value, TYPES[kind]), (section, key, value)


@pytest.mark.parametrize("name", JOBS)
def test_the_batch_is_exactly_what_was_asked_for(name: str) -> None:
    read = config(JOBS[name])
    batch = read["tokens"]["micro_batch_size"] * read["tokens"]["batch_accumulation_per_replica"]
    assert batch * read["parallelism"]["dp"] == JOBS[name].workload.global_batch_size
    degrees = read["parallelism"]
    assert degrees["dp"] * degrees["tp"] * degrees["pp"] == JOBS[name].cluster.gpus


class TestConfig:
    def test_tensor_parallelism(self) -> None:
        assert config(JOBS["sharded"])["parallelism"]["tp_mode"] == "REDUCE_SCATTER"
        assert config(JOBS["sharded"])["parallelism"]["tp_linear_async_communication"] is True
        assert config(JOBS["all-reduce"])["parallelism"]["tp_mode"] == "ALL_REDUCE"
        assert config(JOBS["all-reduce"])["parallelism"]["tp_linear_async_communication"] is False

    def test_engines_recomputation_and_sharding(self) -> None:
        assert config(JOBS["all-forward"])["parallelism"]["pp_engine"] == "afab"
        assert config(JOBS["pipeline"])["parallelism"]["pp_engine"] == "1f1b"
        assert config(JOBS["sharded"])["parallelism"]["recompute_layer"] is True
        assert config(JOBS["sharded"])["optimizer"]["zero_stage"] == 1

    def test_steps_and_dtypes(self) -> None:
        assert config(JOBS["sharded"])["tokens"]["train_steps"] == -(-(10**11) // (4096 * 256))
        assert config(JOBS["fp16"])["model"]["dtype"] == "float16"
        assert config(JOBS["fp16"])["optimizer"]["weight_decay"] == 0.0
        assert config(JOBS["fp32"])["optimizer"]["optimizer_factory"] == {"name": "sgd"}

    @pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
    def test_the_script_fills_in_what_a_person_sets(self, tmp_path: Path) -> None:
        for file in write(JOBS["sharded"]).files:
            (tmp_path / file.path).write_text(file.content)
        (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        (tmp_path / "torchrun").chmod(0o755)
        filled = {"DATA_PATH": "/data set", "TOKENIZER": "t", "CHECKPOINTS": "/c", "LEARNING_RATE": "0.0003"}
        run = subprocess.run(
            ["bash", "train.sh"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "NANOTRON": "/n", **filled},
        )
        words = run.stdout.splitlines()
        assert words[-3:-1] == ["/n/run_train.py", "--config-file"]
        read = yaml.safe_load(Path(words[-1]).read_text())
        assert read["optimizer"]["learning_rate_scheduler"]["learning_rate"] == 0.0003
        assert read["data_stages"][0]["data"]["dataset"]["dataset_folder"] == "/data set"


REFUSED: dict[str, dict[str, Any]] = {
    "data_parallel_replicate_size": {"data_parallel_replicate_size": 2},
    "secondary_shard_size": {"secondary_shard_size": 2},
    "virtual_pipeline_size": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2},
    "pipeline_schedule": {"pipeline_parallel_size": 2, "pipeline_schedule": "zero-bubble"},
    "layers_per_stage": {"pipeline_parallel_size": 2, "layers_per_stage": [20, 12]},
    "context_parallel_size": {"context_parallel_size": 2},
    "zero_stage": {"zero_stage": 2},
    "activation_checkpointing": {"activation_checkpointing": "selective"},
    "checkpointed_layers": {"activation_checkpointing": "full", "checkpointed_layers": 3},
    "offload": {"offload": "optimizer"},
    "precision": {"precision": "fp8"},
    "parameter_dtype": {"parameter_dtype": "fp32"},
    "gradient_dtype": {"gradient_dtype": "bf16"},
    "optimizer_state_dtype": {"optimizer_state_dtype": "bf16"},
    "overlap_communication": {"overlap_communication": False},
    "compile": {"compile": True},
    "kernels": {"kernels": "eager"},
    "cuda_graphs": {"cuda_graphs": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": False},
    "checkpoint_loading": {"checkpoint_loading": "rank0"},
    "checkpoint_saving": {"checkpoint_saving": "full"},
}
WRITTEN: dict[str, dict[str, Any]] = {
    "data_parallel_size": {"tensor_parallel_size": 2},
    "tensor_parallel_size": {"tensor_parallel_size": 2},
    "sequence_parallel": {"tensor_parallel_size": 2, "sequence_parallel": False},
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "micro_batch_size": {"micro_batch_size": 2},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_has_no_key_is_refused_by_name(field: str) -> None:
    with pytest.raises(NotExpressible) as refused:
        write(plan(**REFUSED[field]))
    assert field in refused.value.reasons
    assert refused.value.target == "nanotron"


@pytest.mark.parametrize("field", WRITTEN)
def test_what_has_a_key_changes_the_file(field: str) -> None:
    with_it = WRITTEN[field]
    without = {name: value for name, value in with_it.items() if name != field or field == "data_parallel_size"}
    other = {} if field == "data_parallel_size" else without
    assert write(plan(**with_it)).files != write(plan(**other)).files


def test_every_field_is_written_refused_or_without_meaning() -> None:
    assert {*REFUSED, *WRITTEN, *WITHOUT_MEANING, "framework"} >= set(COLUMNS)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("optimizer", {"optimizer": "sgd-momentum"}),
        ("attention", {"attention": "eager"}),
        ("fused_loss", {"fused_loss": True}),
        ("dropout", {"dropout": 0.1}),
        ("fine_tuning", {"fine_tuning": FineTuning("lora")}),
    ],
)
def test_fields_of_the_workload_too(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotExpressible) as refused:
        write(plan(workload=Workload(4096, 64, **changes)))
    assert field in refused.value.reasons


@pytest.mark.parametrize("model", ["gpt-2-xl", "mixtral-8x7b", "qwen2.5-7b", "mistral-7b", "qwen3-8b", "deepseek-v2"])
def test_models_that_are_no_llama(model: str) -> None:
    with pytest.raises(NotExpressible) as refused:
        write(plan(model, workload=Workload(1024, 64)))
    assert list(refused.value.reasons) == ["model"]
