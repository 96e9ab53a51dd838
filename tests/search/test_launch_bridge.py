"""Target `megatron-bridge`: its YAML against the recorded fields of the classes that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.strategy import COLUMNS
from cost_models.workload import FineTuning, Workload
from search.launch.job import LaunchJob, NotExpressible
from search.launch.megatron_bridge import container, write
from search.launch.megatron_refusals import WITHOUT_MEANING
from tests.search.launch_jobs import gpus, launch_job
from tests.search.test_launch_megatron import CHANGES, JOBS, REFUSED

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "launch" / "megatron_bridge_fields.json").read_text())
CLASSES: dict[str, dict[str, str]] = RECORDED["classes"]
VALUES = ("torch.", "megatron.core.", "builtins.")
"""Objects that are values of fields, not sections."""


def lora(target: Any = "all-linear", **fields: Any) -> Workload:
    return Workload(4096, 64, fine_tuning=FineTuning("lora", rank=8, target=target, **fields))


def sections(node: Any) -> Iterator[dict[str, Any]]:
    """Every object that is made of a class of Bridge."""
    if isinstance(node, dict):
        if "_target_" in node and not node["_target_"].startswith(VALUES):
            yield node
        for value in node.values():
            yield from sections(value)


@pytest.mark.parametrize("name", JOBS)
def test_every_field_is_one_of_its_class(name: str) -> None:
    found = list(sections(container(JOBS[name])))
    assert len(found) == 13
    for section in found:
        known = CLASSES[section["_target_"]]
        assert set(section) - {"_target_"} <= set(known), section["_target_"]


@pytest.mark.parametrize("name", JOBS)
def test_the_file_holds_what_was_planned(name: str) -> None:
    job = JOBS[name]
    files = {file.path: file.content for file in write(job).files}
    read = yaml.safe_load(files["bridge.yaml"])
    assert read == container(job)
    model, strategy = read["model"], job.strategy
    for field, planned in (
        ("tensor_model_parallel_size", "tensor_parallel_size"),
        ("pipeline_model_parallel_size", "pipeline_parallel_size"),
        ("context_parallel_size", "context_parallel_size"),
    ):
        assert model[field] == strategy[planned]
    assert model["num_layers"] == job.model.layers
    assert read["train"]["global_batch_size"] == job.workload.global_batch_size
    assert read["train"]["micro_batch_size"] == strategy["micro_batch_size"]
    assert "torchrun" in files["train.sh"]
    assert files["train.sh"].rstrip().endswith("train.py")
    compile(files["train.py"], "train.py", "exec")


class TestSections:
    def test_patterns_are_lists(self) -> None:
        assert container(JOBS["latent"])["model"]["moe_layer_freq"] == [0] * 3 + [1] * 58
        assert container(JOBS["sinks"])["model"]["window_attn_skip_freq"] == [1, 0] * 12
        assert container(JOBS["sinks"])["model"]["window_size"] == {
            "_target_": "builtins.tuple",
            "_args_": [[127, 0]],
        }

    def test_defaults_that_are_not_megatron_lm_s_are_written_out(self) -> None:
        assert container(JOBS["plain"])["model"]["cross_entropy_loss_fusion"] is False
        assert container(JOBS["adam"])["model"]["cross_entropy_loss_fusion"] is True

    def test_adam_does_not_decouple_its_decay(self) -> None:
        assert container(JOBS["adam"])["optimizer"]["decoupled_weight_decay"] is False
        assert "weight_decay" not in container(JOBS["adam"])["optimizer"]

    def test_dtypes(self) -> None:
        read = container(JOBS["states"])["optimizer"]
        assert read["exp_avg_dtype"] == {"_target_": "torch.bfloat16", "_call_": False}
        assert container(JOBS["mxfp8"])["mixed_precision"]["fp8"] == "e4m3"
        assert container(JOBS["mxfp8"])["mixed_precision"]["fp8_param_gather"] is True
        assert container(JOBS["offload"])["ddp"]["grad_reduce_in_fp32"] is False

    def test_sharded_weights_have_their_checkpoints(self) -> None:
        read = container(JOBS["fsdp"])
        assert read["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
        assert read["dist"]["use_megatron_fsdp"] is True
        assert read["checkpoint"]["ckpt_format"] == "fsdp_dtensor"

    def test_chunks_are_counted_beside_a_layout(self) -> None:
        assert container(JOBS["interleaved"])["model"]["virtual_pipeline_model_parallel_size"] == 5
        assert container(JOBS["plain"])["model"]["virtual_pipeline_model_parallel_size"] is None


class TestLora:
    def test_adapters_on_all_linear_layers(self) -> None:
        job = launch_job(workload=lora())
        read = container(job)
        assert read["peft"] == {
            "_target_": "megatron.bridge.peft.lora.LoRA",
            "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
            "dim": 8,
        }
        assert read["dataset"]["_target_"].endswith("FinetuningDatasetConfig")
        assert "finetune(" in write(job).files[1].content
        for section in sections(read):
            assert set(section) - {"_target_"} <= set(CLASSES[section["_target_"]])

    def test_adapters_on_latent_attention(self) -> None:
        job = launch_job("deepseek-v2", gpus(64), lora("attention"), expert_parallel_size=8)
        assert container(job)["peft"]["target_modules"][0] == "linear_q_down_proj"
        assert "linear_fc1" not in container(job)["peft"]["target_modules"]

    @pytest.mark.parametrize("workload", [lora("attention-qv"), lora(modules_to_save=("head",))])
    def test_what_its_adapters_cannot(self, workload: Workload) -> None:
        with pytest.raises(NotExpressible) as refused:
            write(launch_job(workload=workload))
        assert list(refused.value.reasons) == ["fine_tuning"]
        assert refused.value.target == "megatron-bridge"


@pytest.mark.parametrize(("field", "strategy"), REFUSED)
def test_what_megatron_core_lacks_is_refused_by_name(field: str, strategy: dict[str, Any]) -> None:
    with pytest.raises(NotExpressible) as refused:
        write(launch_job(**strategy))
    assert list(refused.value.reasons) == [field]


def test_positions_are_as_many_as_tokens() -> None:
    with pytest.raises(NotExpressible) as refused:
        write(launch_job("gpt-2-xl", workload=Workload(512, 64)))
    assert "positions" in refused.value.reasons["model"]


def outcome(job: LaunchJob) -> object:
    try:
        return write(job).files
    except NotExpressible as refused:
        return refused.reasons


@pytest.mark.parametrize("field", [name for name in COLUMNS if name != "framework" and name not in WITHOUT_MEANING])
def test_every_field_is_written_or_refused(field: str) -> None:
    model = "mixtral-8x7b" if field.startswith("expert") else "llama-3-8b"
    with_it = CHANGES[field]
    written = outcome(launch_job(model, **with_it))
    if isinstance(written, dict):
        assert field in written
    else:
        without = {name: wanted for name, wanted in with_it.items() if name != field}
        assert written != outcome(launch_job(model, **without))


def test_tokens_travel_as_they_were_priced() -> None:
    cluster = gpus(64)
    place = replace(cluster, inter_node=replace(cluster.inter_node, expert_dispatch="hierarchical"))
    work = Workload(4096, 512)
    model = container(launch_job("deepseek-v3", place, work, expert_parallel_size=16, zero_stage=1))["model"]
    assert (model["moe_token_dispatcher_type"], model["moe_enable_deepep"]) == ("flex", True)
    model = container(launch_job("deepseek-v3", cluster, work, expert_parallel_size=16, zero_stage=1))["model"]
    assert (model["moe_token_dispatcher_type"], model.get("moe_enable_deepep")) == ("alltoall", None)
