"""The Trainer's files."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from cost_models.workload import FineTuning
from search.launch.hf_trainer import WITHOUT_MEANING, every_n_layers, training_arguments, write
from search.launch.job import LaunchJob, NotExpressible
from search.launch.parse_deepspeed import parse
from tests.search.launch_fields import check_every_field_has_a_fate, with_strategy, with_workload
from tests.search.launch_jobs import gpus, launch_job


def job(model: str = "llama-3-8b", **strategy: Any) -> LaunchJob:
    return launch_job(model, framework="deepspeed", **strategy)


def test_arguments_in_full() -> None:
    assert training_arguments(job(zero_stage=3, micro_batch_size=2, activation_checkpointing="full")) == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "max_grad_norm": 1.0,
        "bf16": True,
        "fp16": False,
        "optim": "adamw_torch_fused",
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 1},
        "torch_compile": False,
        "deepspeed": "ds_config.json",
        "save_only_model": False,
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
        "remove_unused_columns": False,
    }


def test_both_files_have_the_same_batch() -> None:
    files = {file.path: file.content for file in write(job(zero_stage=2, micro_batch_size=4)).files}
    engine, trainer = json.loads(files["ds_config.json"]), json.loads(files["training_args.json"])
    assert engine["train_micro_batch_size_per_gpu"] == trainer["per_device_train_batch_size"]
    assert engine["gradient_accumulation_steps"] == trainer["gradient_accumulation_steps"]
    assert engine["train_batch_size"] == 64
    assert parse(files["ds_config.json"]).strategy["zero_stage"] == 2
    ast.parse(files["train.py"])


@pytest.mark.parametrize(("planned", "every"), [(32, 1), (16, 2), (11, 3), (1, 32), (20, None)])
def test_every_n_th_layer(planned: int, every: int | None) -> None:
    assert every_n_layers(job(activation_checkpointing="full", checkpointed_layers=planned)) == every


def test_groups_that_only_the_engine_has_are_refused() -> None:
    for name in ("pipeline_parallel_size", "context_parallel_size"):
        with pytest.raises(NotExpressible) as caught:
            write(job(**{name: 2}))
        assert set(caught.value.reasons) == {name}


def test_every_field_is_written_or_refused_or_has_no_meaning() -> None:
    base, third = job(zero_stage=1), job(zero_stage=3)
    experts = job("mixtral-8x7b", zero_stage=1)
    full = job(activation_checkpointing="full")
    written = {
        "data_parallel_size": (base, launch_job(framework="deepspeed", zero_stage=1, cluster=gpus(4))),
        "secondary_shard_size": (third, job(zero_stage=3, secondary_shard_size=4)),
        "tensor_parallel_size": (base, job(zero_stage=1, tensor_parallel_size=2)),
        "expert_parallel_size": (experts, job("mixtral-8x7b", zero_stage=1, expert_parallel_size=2)),
        "expert_tensor_parallel_size": (
            job("mixtral-8x7b", zero_stage=1, tensor_parallel_size=2, expert_parallel_size=2),
            job(
                "mixtral-8x7b",
                zero_stage=1,
                tensor_parallel_size=2,
                expert_parallel_size=2,
                expert_tensor_parallel_size=2,
            ),
        ),
        "zero_stage": (base, third),
        "micro_batch_size": (base, job(zero_stage=1, micro_batch_size=2)),
        "activation_checkpointing": (job(), full),
        "checkpointed_layers": (full, job(activation_checkpointing="full", checkpointed_layers=16)),
        "offload": (full, job(activation_checkpointing="full", offload="activations")),
        "offload_fraction": (
            job(zero_stage=3, offload="optimizer"),
            job(zero_stage=3, offload="optimizer", offload_fraction=0.5),
        ),
        "precision": (base, job(zero_stage=1, precision="fp16")),
        "gradient_dtype": (base, job(zero_stage=1, gradient_dtype="fp32")),
        "overlap_communication": (base, job(zero_stage=1, overlap_communication=False)),
        "compile": (base, job(zero_stage=1, compile=True)),
        "kernels": (base, job(zero_stage=1, kernels="fused")),
        "expandable_segments": (base, job(zero_stage=1, expandable_segments=True)),
        "checkpoint_loading": (base, job(zero_stage=1, checkpoint_loading="every-rank")),
        "checkpoint_saving": (base, job(zero_stage=1, checkpoint_saving="full")),
        "sequence_length": (base, with_workload(base, sequence_length=2048)),
        "global_batch_size": (base, with_workload(base, global_batch_size=128)),
        "optimizer": (base, with_workload(base, optimizer="sgd")),
        "attention": (base, with_workload(base, attention="eager")),
        "fused_loss": (base, with_workload(base, fused_loss=True)),
        "dropout": (base, with_workload(base, dropout=0.1)),
        "training_tokens": (base, with_workload(base, training_tokens=1e9)),
        "fine_tuning": (base, with_workload(base, fine_tuning=FineTuning("lora"))),
    }
    changes: dict[str, Any] = {
        "data_parallel_replicate_size": 2,
        "sequence_parallel": True,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 2,
        "pipeline_schedule": "gpipe",
        "context_parallel_size": 2,
        "activation_checkpointing": "selective",
        "offload": "activations",
        "precision": "fp8",
        "parameter_dtype": "fp32",
        "optimizer_state_dtype": "bf16",
        "cuda_graphs": True,
        "gradient_as_bucket_view": False,
        "checkpoint_loading": "rank0",
    }
    refused = {name: with_strategy(base, **{name: value}) for name, value in changes.items()} | {
        "framework": launch_job(framework="fsdp2"),
        "checkpointed_layers": job(activation_checkpointing="full", checkpointed_layers=20),
        "offload_fraction": with_strategy(full, offload="activations", offload_fraction=0.5),
    }
    without = {
        **WITHOUT_MEANING,
        "layers_per_stage": "of a pipeline, which is refused",
        "context_parallel_kind": "of context parallelism, which is refused",
    }
    check_every_field_has_a_fate(write, written, refused, without)
