"""Accelerate's files, and its YAML read back."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cost_models.cluster_input import load_cluster_preset
from cost_models.errors import InvalidInput
from cost_models.workload import FineTuning, Workload
from search.launch.accelerate import WITHOUT_MEANING, config, write
from search.launch.job import LaunchJob, NotExpressible
from search.launch.parse_accelerate import LARGEST_TEXT, parse
from tests.search.launch_fields import check_every_field_has_a_fate, with_strategy, with_workload
from tests.search.launch_jobs import gpus, launch_job


def job(framework: str, **strategy: Any) -> LaunchJob:
    return launch_job(framework=framework, **strategy)


class TestConfig:
    def test_fsdp2_in_full(self) -> None:
        assert config(job("fsdp2", activation_checkpointing="full", compile=True)) == {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "FSDP",
            "num_machines": 1,
            "num_processes": 8,
            "machine_rank": 0,
            "rdzv_backend": "static",
            "same_network": True,
            "main_training_function": "main",
            "use_cpu": False,
            "debug": False,
            "mixed_precision": "bf16",
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_reshard_after_forward": True,
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_offload_params": False,
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
                "fsdp_cpu_ram_efficient_loading": True,
                "fsdp_activation_checkpointing": True,
                "fsdp_activation_checkpointing_offload": False,
            },
            "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default", "dynamo_use_dynamic": False},
        }

    def test_hybrid_shards_of_fsdp2_have_a_mesh(self) -> None:
        planned = launch_job(framework="fsdp2", cluster=gpus(16), data_parallel_replicate_size=2)
        assert config(planned)["parallelism_config"] == {
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 8,
        }

    def test_hybrid_shards_of_fsdp1_have_a_name(self) -> None:
        planned = launch_job(framework="fsdp1", cluster=gpus(16), data_parallel_replicate_size=2, zero_stage=2)
        assert config(planned)["fsdp_config"]["fsdp_sharding_strategy"] == "HYBRID_SHARD_ZERO2"

    def test_deepspeed_has_its_own_file(self) -> None:
        written = config(job("deepspeed", zero_stage=3))
        assert written["deepspeed_config"] == {"deepspeed_config_file": "ds_config.json", "zero3_init_flag": True}
        assert "mixed_precision" not in written  # Accelerate refuses it beside a file of DeepSpeed's

    def test_one_gpu_is_not_distributed(self) -> None:
        planned = launch_job("gpt-2-xl", framework="ddp", cluster=gpus(1))
        assert config(planned)["distributed_type"] == "NO"

    def test_weights_in_bf16_are_not_mixed(self) -> None:
        assert config(job("fsdp2", parameter_dtype="bf16"))["mixed_precision"] == "no"


class TestFiles:
    @pytest.mark.parametrize("framework", ["deepspeed", "fsdp2", "fsdp1", "ddp"])
    def test_each_framework_has_yaml_and_a_script(self, framework: str) -> None:
        files = {file.path: file.content for file in write(job(framework)).files}
        assert ("ds_config.json" in files) == (framework == "deepspeed")
        assert yaml.safe_load(files["accelerate.yaml"])["num_processes"] == 8
        assert json.loads(files["settings.json"])["framework"] == framework
        ast.parse(files["train.py"])

    def test_the_trainer_s_learning_rate_goes_into_deepspeed_s_file(self) -> None:
        files = {file.path: file.content for file in write(job("deepspeed")).files}
        assert json.loads(files["ds_config.json"])["optimizer"]["params"] == {"lr": "auto"}

    def test_nodes_are_numbered(self) -> None:
        files = write(launch_job(framework="fsdp2", cluster=gpus(16)))
        assert files.command == "sbatch train.sbatch"
        assert '--machine_rank "$NODE_RANK"' in files.files[-1].content

    def test_a_part_of_the_layers_is_recomputed_by_the_script(self) -> None:
        files = {
            f.path: f.content
            for f in write(job("fsdp2", activation_checkpointing="full", checkpointed_layers=10)).files
        }
        assert yaml.safe_load(files["accelerate.yaml"])["fsdp_config"]["fsdp_activation_checkpointing"] is False
        assert json.loads(files["settings.json"])["checkpointed_layers"] == 10

    def test_how_weights_are_loaded_is_said(self) -> None:
        assert any(note.startswith("checkpoint_loading") for note in write(job("fsdp2")).notes)
        assert not any(
            note.startswith("checkpoint_loading") for note in write(job("fsdp2", checkpoint_loading="rank0")).notes
        )

    def test_weights_beyond_the_host_are_refused(self) -> None:
        planned = launch_job("gpt-3-175b", framework="fsdp2", cluster=load_cluster_preset("p4d", 8))
        small = with_strategy(planned)
        host = small.cluster.host
        assert host is not None
        if host.memory_bytes > 175e9 * 4:
            write(planned)
        huge = launch_job("kimi-k2", framework="fsdp2", cluster=load_cluster_preset("p4d", 128))
        with pytest.raises(NotExpressible) as caught:
            write(huge)
        assert "checkpoint_loading" in caught.value.reasons


def common_written(framework: str) -> dict[str, tuple[LaunchJob, LaunchJob]]:
    """Fields that every one of PyTorch's own frameworks writes."""
    base = job(framework)
    return {
        "data_parallel_size": (base, launch_job(framework=framework, cluster=gpus(4))),
        "micro_batch_size": (base, job(framework, micro_batch_size=2)),
        "activation_checkpointing": (base, job(framework, activation_checkpointing="full")),
        "checkpointed_layers": (
            job(framework, activation_checkpointing="full", checkpointed_layers=8),
            job(framework, activation_checkpointing="full", checkpointed_layers=9),
        ),
        "offload": (base, job(framework, offload="activations")),
        "offload_fraction": (
            job(framework, offload="activations"),
            job(framework, offload="activations", offload_fraction=0.5),
        ),
        "precision": (base, job(framework, precision="fp16")),
        "fp8_recipe": (
            job(framework, precision="fp8", fp8_recipe="tensorwise"),
            job(framework, precision="fp8", fp8_recipe="rowwise"),
        ),
        "parameter_dtype": (base, job(framework, parameter_dtype="bf16")),
        "compile": (base, job(framework, compile=True)),
        "kernels": (job(framework, kernels="eager"), job(framework, kernels="fused")),
        "expandable_segments": (
            job(framework, expandable_segments=True),
            job(framework, expandable_segments=False),
        ),
        "checkpoint_loading": (base, job(framework, checkpoint_loading="every-rank")),
        "checkpoint_saving": (base, job(framework, checkpoint_saving="full")),
        "sequence_length": (base, with_workload(base, sequence_length=2048)),
        "global_batch_size": (base, with_workload(base, global_batch_size=128)),
        "optimizer": (base, with_workload(base, optimizer="sgd")),
        "attention": (base, with_workload(base, attention="eager")),
        "fused_loss": (base, with_workload(base, fused_loss=True)),
        "dropout": (base, with_workload(base, dropout=0.1)),
        "training_tokens": (base, with_workload(base, training_tokens=1e9)),
        "fine_tuning": (
            base,
            launch_job(framework=framework, workload=Workload(4096, 64, fine_tuning=FineTuning("lora"))),
        ),
    }


def common_refused(framework: str) -> dict[str, LaunchJob]:
    base = job(framework)
    changes: dict[str, Any] = {
        "secondary_shard_size": 2,
        "tensor_parallel_size": 2,
        "sequence_parallel": True,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 2,
        "pipeline_schedule": "gpipe",
        "layers_per_stage": [30],
        "expert_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "activation_checkpointing": "selective",
        "offload": "nvme",
        "precision": "nvfp4",
        "fp8_recipe": "mxfp8",
        "gradient_dtype": "bf16",
        "optimizer_state_dtype": "bf16",
        "overlap_communication": False,
        "cuda_graphs": True,
    }
    jobs = {name: with_strategy(base, **{name: value}) for name, value in changes.items()}
    jobs["fp8_recipe"] = with_strategy(jobs["fp8_recipe"], precision="fp8")
    return {**jobs, "framework": launch_job(framework="nanotron")}


class TestFields:
    def test_fsdp2(self) -> None:
        base = job("fsdp2")
        wide = launch_job(framework="fsdp2", cluster=gpus(16))
        own = {
            "zero_stage": (base, job("fsdp2", zero_stage=2)),
            "data_parallel_replicate_size": (
                wide,
                launch_job(framework="fsdp2", cluster=gpus(16), data_parallel_replicate_size=2),
            ),
            "context_parallel_size": (base, job("fsdp2", context_parallel_size=2)),
            "context_parallel_kind": (
                job("fsdp2", context_parallel_size=2, context_parallel_kind="all-gather"),
                job("fsdp2", context_parallel_size=2, context_parallel_kind="ring"),
            ),
        }
        refused = {
            **common_refused("fsdp2"),
            "zero_stage": job("fsdp2", zero_stage=0),
            "gradient_as_bucket_view": with_strategy(base, gradient_as_bucket_view=False),
            "offload_fraction": with_strategy(base, offload="optimizer-and-parameters", offload_fraction=0.5),
        }
        check_every_field_has_a_fate(write, {**common_written("fsdp2"), **own}, refused, WITHOUT_MEANING)

    def test_fsdp1(self) -> None:
        base = job("fsdp1")
        wide = launch_job(framework="fsdp1", cluster=gpus(16))
        own = {
            "zero_stage": (base, job("fsdp1", zero_stage=2)),
            "data_parallel_replicate_size": (
                wide,
                launch_job(framework="fsdp1", cluster=gpus(16), data_parallel_replicate_size=2),
            ),
        }
        refused = {
            **common_refused("fsdp1"),
            "data_parallel_replicate_size": with_strategy(wide, data_parallel_replicate_size=4),
            "gradient_as_bucket_view": with_strategy(base, gradient_as_bucket_view=False),
            "context_parallel_size": with_strategy(base, context_parallel_size=2),
        }
        without = {**WITHOUT_MEANING, "context_parallel_kind": "of context parallelism, which is refused"}
        check_every_field_has_a_fate(write, {**common_written("fsdp1"), **own}, refused, without)

    def test_ddp(self) -> None:
        base = job("ddp")
        own = {"gradient_as_bucket_view": (base, job("ddp", gradient_as_bucket_view=True))}
        refused = {
            **common_refused("ddp"),
            "zero_stage": with_strategy(base, zero_stage=1),
            "data_parallel_replicate_size": with_strategy(base, data_parallel_replicate_size=2),
            "context_parallel_size": with_strategy(base, context_parallel_size=2),
        }
        without = {**WITHOUT_MEANING, "context_parallel_kind": "of context parallelism, which is refused"}
        check_every_field_has_a_fate(write, {**common_written("ddp"), **own}, refused, without)

    def test_deepspeed_refuses_what_its_loop_has_not(self) -> None:
        for name in ("pipeline_parallel_size", "context_parallel_size"):
            with pytest.raises(NotExpressible) as caught:
                write(job("deepspeed", **{name: 2}))
            assert set(caught.value.reasons) == {name}


@st.composite
def jobs(draw: st.DrawFn) -> LaunchJob:
    framework = draw(st.sampled_from(("fsdp2", "fsdp1", "ddp", "deepspeed")))
    nodes = draw(st.sampled_from((1, 2)))
    strategy: dict[str, Any] = {
        "micro_batch_size": draw(st.sampled_from((1, 2))),
        "precision": draw(st.sampled_from(("bf16", "fp16"))),
        "activation_checkpointing": draw(st.sampled_from(("none", "full"))),
        "checkpoint_loading": draw(st.sampled_from(("rank0", "every-rank"))),
        "checkpoint_saving": draw(st.sampled_from(("sharded", "full"))),
        "compile": draw(st.booleans()),
    }
    if framework == "deepspeed":
        strategy |= {"zero_stage": 3, "checkpoint_loading": draw(st.sampled_from(("sharded", "every-rank")))}
    elif framework != "ddp":
        strategy["zero_stage"] = draw(st.sampled_from((2, 3)))
        strategy["offload"] = draw(st.sampled_from(("none", "optimizer-and-parameters")))
        if nodes > 1:
            strategy["data_parallel_replicate_size"] = draw(st.sampled_from((1, 2)))
    if framework == "fsdp2" and draw(st.booleans()):
        strategy["context_parallel_size"] = 2
        strategy["context_parallel_kind"] = draw(st.sampled_from(("ring", "all-gather")))
    return launch_job(framework=framework, cluster=gpus(8 * nodes), **strategy)


class TestRoundTrip:
    @given(jobs())
    def test_what_is_written_is_read(self, planned: LaunchJob) -> None:
        parsed = parse(write(planned).files[0].content)
        framework = planned.strategy["framework"]
        assert parsed.unmapped == (("deepspeed_config.deepspeed_config_file",) if framework == "deepspeed" else ())
        assert {name: planned.strategy[name] for name in parsed.strategy} == parsed.strategy
        expected = {"framework", "data_parallel_size"}
        if framework != "deepspeed":
            expected |= {"zero_stage", "precision"}
        if framework.startswith("fsdp"):
            expected |= {"offload", "checkpoint_loading", "checkpoint_saving"}
            if planned.strategy["activation_checkpointing"] == "full":
                expected.add("activation_checkpointing")
        for name in ("context_parallel_size", "data_parallel_replicate_size"):
            if planned.strategy[name] > 1:
                expected.add(name)
        assert expected <= set(parsed.strategy)


class TestParse:
    def test_deepspeed_without_a_file_of_its_own(self) -> None:
        text = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
        parsed = parse(text)
        assert parsed.strategy == {
            "framework": "deepspeed",
            "zero_stage": 2,
            "offload": "optimizer",
            "data_parallel_size": 8,
            "precision": "bf16",
        }
        assert parsed.unmapped == ("deepspeed_config.gradient_accumulation_steps",)

    def test_numbers_of_sharding_strategies(self) -> None:
        parsed = parse("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\nnum_processes: 4\n")
        assert (parsed.strategy["framework"], parsed.strategy["zero_stage"]) == ("fsdp1", 2)

    def test_megatron(self) -> None:
        parsed = parse(
            "distributed_type: MEGATRON_LM\nnum_processes: 16\nmegatron_lm_config:\n  megatron_lm_tp_degree: 4\n"
            "  megatron_lm_pp_degree: 2\n  megatron_lm_use_distributed_optimizer: true\n"
        )
        assert parsed.strategy == {
            "framework": "megatron-lm",
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 2,
            "zero_stage": 1,
            "data_parallel_size": 2,
        }

    def test_no_mixed_precision_leaves_precision_to_the_script(self) -> None:
        parsed = parse("distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n")
        assert "precision" not in parsed.strategy
        assert parsed.unmapped == ("mixed_precision",)

    @pytest.mark.parametrize(
        ("text", "place", "code"),
        [
            ("a: [1", (), "syntax"),
            ("- a", (), "syntax"),
            ("a: &x [1]\nb: *x", (), "syntax"),
            ("a: 1\na: 2", (), "syntax"),
            ("a: 2001-99-99", (), "syntax"),
            ("{[1]: 2}", (), "syntax"),
            ("a: \x00", (), "syntax"),
            ("a: " + "[" * 5000, (), "syntax"),
            ("#" * (LARGEST_TEXT + 1), (), "syntax"),
            ("a: !!python/object/apply:os.system [ls]", (), "syntax"),
            ("debug: false", ("distributed_type",), "missing"),
            ("distributed_type: XLA", ("distributed_type",), "unknown_value"),
            ("distributed_type: FSDP\nfsdp_config: 3", ("fsdp_config",), "not_an_object"),
            (
                "distributed_type: FSDP\nfsdp_config: {fsdp_version: 3}",
                ("fsdp_config", "fsdp_version"),
                "unknown_value",
            ),
            ("distributed_type: MULTI_GPU\nnum_processes: 0", ("num_processes",), "not_a_size"),
            (
                "distributed_type: MEGATRON_LM\nnum_processes: 3\nmegatron_lm_config: {megatron_lm_tp_degree: 2}",
                ("num_processes",),
                "degrees_do_not_multiply_to_gpus",
            ),
        ],
    )
    def test_bad_text_has_a_place_and_a_rule(self, text: str, place: tuple[str, ...], code: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse(text)
        assert (caught.value.loc, caught.value.code) == (("content", *place), code)

    def test_a_slip_of_syntax_has_its_line(self) -> None:
        with pytest.raises(InvalidInput, match="line 2"):
            parse("debug: false\nnum: : 3")
