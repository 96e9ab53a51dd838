"""The frameworks' own parsers take what is written for them, and see what was planned.

They live in an environment of their own (`make frameworks`, requirements-frameworks.lock); scripts in
tests/launch_parsers run there.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cost_models.workload import Workload
from search.launch import accelerate, ddp, hf_trainer, torchtitan
from search.launch.deepspeed_config import config
from search.launch.job import LaunchFiles, LaunchJob
from tests.search.launch_fields import with_workload
from tests.search.launch_jobs import gpus, launch_job

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"


def asked(script: str, jobs: list[Any]) -> list[dict[str, Any]]:
    """What the framework's own code says of each job."""
    if not PYTHON.exists():
        reason = f"{PYTHON.relative_to(ROOT)} is not there: make frameworks"
        if os.environ.get("REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    path = ROOT / "tests" / "launch_parsers" / f"check_{script}.py"
    run = subprocess.run([PYTHON, path], input=json.dumps(jobs), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    assert len(found) == len(jobs)
    return found


def content(files: LaunchFiles, path: str) -> str:
    return next(file.content for file in files.files if file.path == path)


def deepspeed_jobs() -> list[LaunchJob]:
    def job(**strategy: Any) -> LaunchJob:
        return launch_job(framework="deepspeed", **strategy)

    return [
        job(),
        job(precision="fp16"),
        job(precision="fp32"),
        job(zero_stage=1, gradient_dtype="fp32", overlap_communication=False),
        job(zero_stage=1, tensor_parallel_size=2),
        job(zero_stage=1, pipeline_parallel_size=2, activation_checkpointing="full"),
        job(zero_stage=2, offload="optimizer", micro_batch_size=4),
        job(zero_stage=2, context_parallel_size=2),
        job(zero_stage=3, offload="optimizer", offload_fraction=0.3),
        job(zero_stage=3, offload="optimizer-and-parameters", activation_checkpointing="full", checkpointed_layers=9),
        job(zero_stage=3, offload="nvme", secondary_shard_size=8, checkpoint_saving="full"),
        launch_job("mixtral-8x7b", framework="deepspeed", zero_stage=2, expert_parallel_size=4),
        *(with_workload(job(zero_stage=1), optimizer=name) for name in ("adam", "sgd", "sgd-momentum", "muon")),
    ]


def test_deepspeed() -> None:
    jobs = deepspeed_jobs()
    found = asked(
        "deepspeed", [{"config": config(job), "data_ranks": job.strategy["data_parallel_size"]} for job in jobs]
    )
    for job, said in zip(jobs, found, strict=True):
        strategy = job.strategy
        assert said["version"] == "0.19.8"
        assert said["unknown"] == []
        assert said["batch"] == [64, strategy["micro_batch_size"], job.micro_batches]
        assert said["stage"] == strategy["zero_stage"]
        assert said["overlap"] == (strategy["overlap_communication"] and strategy["zero_stage"] > 0)
        assert said["secondary"] == strategy["secondary_shard_size"]
        assert said["precision"] == strategy["precision"]
        assert said["gradients"] == strategy["gradient_dtype"]
        assert max(said["tensor"], 1) == strategy["tensor_parallel_size"]
        assert said["experts"] == strategy["expert_parallel_size"]
        devices = {
            "none": [None, None],
            "optimizer": ["cpu", None],
            "optimizer-and-parameters": ["cpu", "cpu"],
            "nvme": ["nvme", "nvme"],
        }
        assert said["devices"] == devices[strategy["offload"]]
        assert said["ratio"] == (None if strategy["offload"] == "none" else strategy["offload_fraction"])
        full = strategy["activation_checkpointing"] == "full"
        assert said["checkpoints"] == (strategy["checkpointed_layers"] if full else None)


def test_accelerate() -> None:
    two_nodes = gpus(16)
    jobs = [
        launch_job(framework="fsdp2"),
        launch_job(framework="fsdp2", zero_stage=2, activation_checkpointing="full", compile=True),
        launch_job(framework="fsdp2", offload="optimizer-and-parameters", checkpoint_saving="full"),
        launch_job(framework="fsdp2", cluster=two_nodes, data_parallel_replicate_size=2, context_parallel_size=2),
        launch_job(framework="fsdp1"),
        launch_job(framework="fsdp1", cluster=two_nodes, data_parallel_replicate_size=2, zero_stage=2),
        launch_job(framework="ddp", precision="fp16"),
        launch_job(framework="deepspeed", zero_stage=3),
        launch_job(framework="deepspeed", zero_stage=1, cluster=two_nodes),
    ]
    found = asked("accelerate", [content(accelerate.write(job), accelerate.YAML_PATH) for job in jobs])
    sharding = {"fsdp2": {2: False, 3: True}, "fsdp1": {3: "FULL_SHARD", 2: "_HYBRID_SHARD_ZERO2"}}
    for job, said in zip(jobs, found, strict=True):
        strategy = job.strategy
        framework = strategy["framework"]
        assert said["version"] == "1.15.0"
        assert (said["processes"], said["nodes"]) == (job.cluster.gpus, job.cluster.nodes)
        assert said["type"] == accelerate.TYPES[framework]
        if framework == "deepspeed":
            assert said["file"] == "ds_config.json"
            assert said["split"] == ("true" if strategy["zero_stage"] == 3 else "false")
            continue
        assert said["mixed"] == strategy["precision"]
        assert said["compile"] == ("INDUCTOR" if strategy["compile"] else "no")
        if framework == "ddp":
            continue
        assert f"fsdp{said['fsdp']}" == framework
        assert said["reshard"] == sharding[framework][strategy["zero_stage"]]
        assert said["recompute"] == (strategy["activation_checkpointing"] == "full")
        assert said["offload"] == (strategy["offload"] == "optimizer-and-parameters")
        assert said["saved"] == f"{strategy['checkpoint_saving'].upper()}_STATE_DICT"
    assert found[3]["mesh"] == [2, 4, 2, 16]


def test_transformers() -> None:
    groups = ("pipeline_parallel_size", "context_parallel_size")
    jobs = [job for job in deepspeed_jobs() if all(job.strategy[name] == 1 for name in groups)]
    jobs = [job for job in jobs if job.strategy["checkpointed_layers"] in (0, 32)]
    jobs.append(launch_job(framework="deepspeed", activation_checkpointing="full", offload="activations"))
    asking = []
    for job in jobs:
        files = hf_trainer.write(job)
        arguments = json.loads(content(files, hf_trainer.ARGUMENTS_PATH))
        ranks = job.strategy["data_parallel_size"]
        asking.append({"arguments": arguments, "config": json.loads(content(files, "ds_config.json")), "ranks": ranks})
    found = asked("transformers", asking)
    assert {said["version"] for said in found} == {"5.24.0"}
    assert [said["mismatches"] for said in found] == [[]] * len(jobs)
    assert [said["unknown"] for said in found] == [[]] * len(jobs)
    assert {said["rate"] for said in found} == {1e-4}
    assert found[-1]["recompute"] == {"use_reentrant": False, "every_n_layers": 1, "offload": True}


def test_torchtitan() -> None:
    def job(model: str = "llama-3-8b", count: int = 8, **strategy: Any) -> LaunchJob:
        workload = Workload(sequence_length=4096, global_batch_size=256)
        return launch_job(model, cluster=gpus(count), workload=workload, framework="fsdp2", **strategy)

    jobs = [
        job(),
        job("qwen3-8b", zero_stage=0),
        job(count=16, data_parallel_replicate_size=2, activation_checkpointing="full", compile=True),
        job(tensor_parallel_size=2, context_parallel_size=2, activation_checkpointing="selective"),
        job(pipeline_parallel_size=2, micro_batch_size=2),
        job(pipeline_parallel_size=2, virtual_pipeline_size=4),
        job(pipeline_parallel_size=2, virtual_pipeline_size=2, pipeline_schedule="zero-bubble"),
        job(pipeline_parallel_size=4, pipeline_schedule="gpipe", layers_per_stage=[7, 8, 9, 8]),
        job(precision="fp8", fp8_recipe="rowwise", compile=True),
        job(precision="fp8", fp8_recipe="mxfp8"),
        job(precision="nvfp4"),
        job(parameter_dtype="bf16", offload="optimizer-and-parameters"),
        job("llama-3.1-405b", 64, tensor_parallel_size=8),
        job("qwen3-30b-a3b", expert_parallel_size=4),
        job("gpt-oss-20b"),
        job("llama-2-7b", pipeline_parallel_size=2),
        job("deepseek-v3", 256, expert_parallel_size=32),
        with_workload(job(optimizer_state_dtype="bf16", cuda_graphs=True), fused_loss=True, training_tokens=1e10),
    ]
    asking = [
        {"text": content(torchtitan.write(each), torchtitan.CONFIG_PATH), "gpus": each.cluster.gpus} for each in jobs
    ]
    found = asked("torchtitan", asking)
    schedules = {
        "1f1b": "Schedule1F1B",
        "gpipe": "ScheduleGPipe",
        "interleaved": "ScheduleInterleaved1F1B",
        "zero-bubble": "ScheduleZBVZeroBubble",
    }
    checkpointing = {"none": None, "selective": "SelectiveAC.Config", "full": "FullAC.Config"}
    converted = {"rowwise": {"Float8Linear": 160}, "mxfp8": {"MXFP8Linear": 160}}  # five of each of 32 blocks
    for each, said in zip(jobs, found, strict=True):
        strategy = each.strategy
        data = strategy["data_parallel_size"]
        replicas = strategy["data_parallel_replicate_size"] if strategy["zero_stage"] else data
        assert said["version"] == "0.3.0"
        sizes = [strategy[f"{name}_parallel_size"] for name in ("context", "tensor", "pipeline", "expert")]
        assert said["sizes"] == [replicas, data // replicas, *sizes]
        steps, rest = divmod(said["batch"][1], said["batch"][0] * data)
        assert (said["batch"][1], rest) == (256, 0)
        piped = strategy["pipeline_parallel_size"] > 1
        assert steps == (1 if piped else each.micro_batches)
        assert said["layers"] == each.model.layers
        assert said["schedule"] == schedules[strategy["pipeline_schedule"]]
        assert said["checkpointing"] == checkpointing[strategy["activation_checkpointing"]]
        assert said["dtype"] == torchtitan.DTYPES[strategy["parameter_dtype"]]
        nvfp4 = {"NVFP4Linear": 135} if strategy["precision"] == "nvfp4" else {}  # five of 32 blocks stay in bf16
        assert said["converted"] == (converted[strategy["fp8_recipe"]] if strategy["precision"] == "fp8" else nvfp4)


def test_the_script_for_ddp_trains_a_tiny_model() -> None:
    def job(micro_batch_size: int = 1, **strategy: Any) -> LaunchJob:
        workload = Workload(sequence_length=128, global_batch_size=8, precision="fp32", attention="eager")
        return launch_job(
            framework="ddp", cluster=gpus(2), workload=workload, micro_batch_size=micro_batch_size, **strategy
        )

    jobs = [
        job(),
        job(4, gradient_as_bucket_view=True, activation_checkpointing="full", checkpointed_layers=2),
        job(2, checkpoint_loading="rank0", checkpoint_saving="full", offload="activations", offload_fraction=0.1),
    ]
    files = [{file.path: file.content for file in ddp.write(each).files} for each in jobs]
    found = asked("torchrun", [{"files": each} for each in files])
    # The global batch is the same however it is cut, and so is the model after each step.
    first = found[0]["losses"]
    assert len(set(first)) == 3
    assert [said["losses"] for said in found] == [pytest.approx(first, abs=2e-4)] * 3
    assert [said["saved"] for said in found[:2]] == [[".metadata", "__0_0.distcp", "__1_0.distcp"]] * 2
    assert found[2]["saved"] == ["state.pt"]
