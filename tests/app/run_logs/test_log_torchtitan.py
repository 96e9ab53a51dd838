"""Logs of torchtitan: rank tags, colours, pipelines, several runs."""

from __future__ import annotations

import pytest

from app.run_logs.facts import Facts, Reading
from app.run_logs.launch_environment import catalog_gpu
from app.run_logs.torchtitan import PRESETS
from app.run_logs.torchtitan_config import ConfigReader, say_config
from cost_models.catalog.models import load_model
from cost_models.parameters import count_parameters
from tests.app.run_logs.excerpts import read_log


def test_a_coloured_log_of_a_pipeline() -> None:
    format, (run,) = read_log("torchtitan.log")
    assert format == "torchtitan"
    assert run.sections == {
        "model": {
            "architecture": {
                "layers": 8,
                "hidden_size": 2048,
                "attention_heads": 16,
                "key_value_heads": 8,
                "ffn_hidden_size": 7168,  # 2/3 · 4 · 2048 · 1.3 = 7098, to a multiple of 1024
                "vocab_size": 32000,
                "gated_mlp": True,
                "tied_embeddings": False,
                "position_embeddings": "rotary",
            }
        },
        "workload": {"precision": "bf16", "sequence_length": 4096, "global_batch_size": 64, "optimizer": "adamw"},
        "strategy": {
            "framework": "fsdp2",
            "activation_checkpointing": "full",
            "compile": False,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 2,
            "context_parallel_size": 1,
            "data_parallel_size": 4,
            "zero_stage": 2,  # "default": not resharded with a pipeline
            "micro_batch_size": 2,  # 8 in 4 micro-batches
            "pipeline_schedule": "1f1b",
            "virtual_pipeline_size": 1,
            "layers_per_stage": [4, 4],
        },
        "software": {"model": "llama3 tiny"},
    }
    assert run.gpus == 8
    # 16 s and 17 s for ten steps; 15 s is warm-up, and the last line is cut off
    assert run.step_seconds == 1.65
    assert run.readings == (Reading(rank=6, reserved_gib=55.11), Reading(rank=0, reserved_gib=60.0))


def test_two_runs_one_after_the_other() -> None:
    _, runs = read_log("torchtitan_two.log")
    eager, compiled = runs
    assert eager.sections["model"] == {"preset": "llama-3-8b"}
    assert eager.sections["cluster"] == {"gpu": "h100-sxm5-80gb"}
    assert (eager.sections["workload"]["precision"], eager.sections["strategy"]["compile"]) == ("fp8", False)
    assert (eager.step_seconds, eager.readings) == (2.05, (Reading(rank=0, reserved_gib=62.5),))
    assert "cluster" not in compiled.sections
    assert compiled.sections["strategy"]["compile"] is True
    assert (compiled.step_seconds, compiled.readings) == (1.1, (Reading(rank=0, reserved_gib=47.77),))
    assert "zero_stage" not in eager.sections["strategy"]


def test_out_of_memory_keeps_its_figures() -> None:
    _, (run,) = read_log("out_of_memory.log")
    assert run.out_of_memory
    assert run.readings == (Reading(rank=3, allocated_gib=75.25, reserved_gib=75.75, device_gib=77.75),)
    assert run.step_seconds is None
    assert run.sections["cluster"] == {"nodes": 1, "gpus_per_node": 8}


@pytest.mark.parametrize(("key", "preset"), PRESETS.items())
def test_presets_have_the_parameters_that_torchtitan_prints(key: tuple[str, str, int], preset: str) -> None:
    assert count_parameters(load_model(preset)).total == key[2]


@pytest.mark.parametrize(
    ("device", "memory_gib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 79.10, "h100-sxm5-80gb"),
        ("NVIDIA H100", 95.0, None),
        ("NVIDIA H100 80GB HBM3", 95.0, None),
        ("NVIDIA A100-SXM4-40GB", 39.39, "a100-sxm4-40gb"),
        ("NVIDIA A10G", 22.06, "a10g-24gb"),
        ("NVIDIA H20", 95.1, "h20-96gb"),
        ("NVIDIA H200", 139.8, "h200-sxm5-141gb"),
        ("AMD Instinct MI300X OAM", 191.98, "mi300x-192gb"),
    ],
)
def test_devices_of_the_catalog(device: str, memory_gib: float, name: str | None) -> None:
    assert catalog_gpu(device, memory_gib) == name


@pytest.mark.parametrize(("name", "optimizer"), [("Adam", "adam"), ("Lion", None)])
def test_an_optimizer_that_is_not_known_is_asked_for(name: str, optimizer: str | None) -> None:
    config, facts = ConfigReader(), Facts()
    config.read(f'Running with configs: {{"optimizer": {{"name": "{name}"}}}}\n')
    say_config(config, facts)
    assert facts.said("workload.optimizer") == optimizer
    assert (("workload", "optimizer") in facts.asks) is (optimizer is None)
