"""DeepSpeed's files, and ds_config.json read back."""

from __future__ import annotations

import ast
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InvalidInput
from cost_models.workload import FineTuning, Workload
from search.launch.deepspeed import WITHOUT_MEANING, write
from search.launch.deepspeed_config import config
from search.launch.job import LaunchJob, NotExpressible
from search.launch.parse_deepspeed import parse
from search.launch.targets import write as write_target
from tests.search.launch_fields import check_every_field_has_a_fate, with_strategy, with_workload
from tests.search.launch_jobs import gpus, launch_job


def job(workload: Workload | None = None, **strategy: Any) -> LaunchJob:
    return launch_job(workload=workload, framework="deepspeed", **strategy)


def mixture(**strategy: Any) -> LaunchJob:
    return launch_job("mixtral-8x7b", framework="deepspeed", **strategy)


class TestConfig:
    def test_zero_1_in_full(self) -> None:
        assert config(job(zero_stage=1, micro_batch_size=2, gradient_dtype="fp32")) == {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0,
            "steps_per_print": 10,
            "bf16": {"enabled": True},
            "fp16": {"enabled": False},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "bf16",
            "optimizer": {"type": "AdamW", "params": {}},
            "zero_optimization": {"stage": 1, "overlap_comm": True, "contiguous_gradients": True},
        }

    def test_zero_3_on_nvme_with_a_second_shard(self) -> None:
        written = config(job(zero_stage=3, offload="nvme", secondary_shard_size=8, checkpoint_saving="full"))
        place = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
        assert written["zero_optimization"] == {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "zero_hpz_partition_size": 8,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": place,
            "offload_param": place,
        }
        assert written["aio"]["block_size"] == 1048576

    def test_a_part_of_the_optimizer_is_a_ratio(self) -> None:
        written = config(job(zero_stage=3, offload="optimizer", offload_fraction=0.3))
        assert written["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 0.3}
        assert "offload_param" not in written["zero_optimization"]

    def test_fp16_scales_its_loss(self) -> None:
        written = config(job(precision="fp16"))
        assert written["fp16"]["enabled"] is True
        assert written["fp16"]["loss_scale"] == 0
        assert written["bf16"] == {"enabled": False}

    def test_the_batch_is_that_of_data_ranks_alone(self) -> None:
        written = config(job(tensor_parallel_size=2, zero_stage=1))
        assert written["tensor_parallel"] == {"autotp_size": 2}
        assert (written["train_batch_size"], written["gradient_accumulation_steps"]) == (64, 16)

    def test_experts(self) -> None:
        assert config(mixture(expert_parallel_size=4, zero_stage=2))["expert_parallel"] == {
            "enabled": True,
            "autoep_size": 4,
            "expert_tensor_parallel_size": 1,
        }


class TestFiles:
    def test_a_script_comes_with_its_settings(self) -> None:
        files = write(job(zero_stage=2, activation_checkpointing="full", checkpointed_layers=20))
        assert [file.path for file in files.files] == ["ds_config.json", "settings.json", "model.py", "train.py"]
        settings = json.loads(files.files[1].content)
        assert settings["checkpointed_layers"] == 20
        assert settings["attention"] == "flash_attention_2"
        assert files.command.startswith("torchrun")
        assert "train.py" in files.command

    def test_a_pipeline_has_its_stages_and_no_script(self) -> None:
        files = write(job(pipeline_parallel_size=2, zero_stage=1, layers_per_stage=[15, 17]))
        assert [file.path for file in files.files] == ["ds_config.json", "planned_pipeline.py"]
        assert json.loads(files.files[0].content)["pipeline"]["layers_per_stage"] == [15, 17]
        assert any("PipelineModule" in note for note in files.notes)

    @pytest.mark.parametrize("strategy", [{}, {"pipeline_parallel_size": 2}])
    def test_scripts_are_python(self, strategy: dict[str, Any]) -> None:
        scripts = [file for file in write(job(**strategy)).files if file.path.endswith(".py")]
        assert scripts
        for file in scripts:
            ast.parse(file.content)

    def test_many_nodes_start_from_slurm(self) -> None:
        files = write(launch_job(framework="deepspeed", cluster=gpus(16)))
        assert files.command == "sbatch train.sbatch"
        assert files.files[-1].path == "train.sbatch"

    def test_it_is_the_first_target_of_its_framework(self) -> None:
        assert write_target(job()) == write(job())

    def test_tokens_become_steps(self) -> None:
        workload = Workload(sequence_length=4096, global_batch_size=64, training_tokens=1e9)
        files = write(job(workload))
        assert json.loads(files.files[1].content)["steps"] == 3815  # 1e9 / (4096 x 64), rounded up
        assert "STEPS" not in files.command


class TestFields:
    def test_every_field_is_written_or_refused_or_has_no_meaning(self) -> None:
        base = job(zero_stage=1)
        third = job(zero_stage=3)
        tuned = FineTuning("lora")
        written = {
            "data_parallel_size": (base, launch_job(framework="deepspeed", zero_stage=1, cluster=gpus(4))),
            "secondary_shard_size": (third, job(zero_stage=3, secondary_shard_size=4)),
            "tensor_parallel_size": (base, job(zero_stage=1, tensor_parallel_size=2)),
            "pipeline_parallel_size": (base, job(zero_stage=1, pipeline_parallel_size=2)),
            "layers_per_stage": (
                job(pipeline_parallel_size=2, layers_per_stage=[16, 16]),
                job(pipeline_parallel_size=2, layers_per_stage=[15, 17]),
            ),
            "context_parallel_size": (base, job(zero_stage=1, context_parallel_size=2)),
            "expert_parallel_size": (mixture(zero_stage=1), mixture(zero_stage=1, expert_parallel_size=2)),
            "expert_tensor_parallel_size": (
                mixture(zero_stage=1, tensor_parallel_size=2, expert_parallel_size=2),
                mixture(zero_stage=1, tensor_parallel_size=2, expert_parallel_size=2, expert_tensor_parallel_size=2),
            ),
            "zero_stage": (base, third),
            "micro_batch_size": (base, job(zero_stage=1, micro_batch_size=2)),
            "activation_checkpointing": (base, job(zero_stage=1, activation_checkpointing="full")),
            "checkpointed_layers": (
                job(activation_checkpointing="full", checkpointed_layers=8),
                job(activation_checkpointing="full", checkpointed_layers=9),
            ),
            "offload": (third, job(zero_stage=3, offload="optimizer")),
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
            "fine_tuning": (base, with_workload(base, fine_tuning=tuned)),
        }
        refused = {
            "framework": launch_job(framework="fsdp2"),
            "data_parallel_replicate_size": with_strategy(third, data_parallel_replicate_size=2),
            "sequence_parallel": with_strategy(base, sequence_parallel=True),
            "virtual_pipeline_size": with_strategy(base, virtual_pipeline_size=2),
            "pipeline_schedule": with_strategy(base, pipeline_schedule="gpipe"),
            "context_parallel_kind": with_strategy(base, context_parallel_size=2, context_parallel_kind="ring"),
            "activation_checkpointing": with_strategy(base, activation_checkpointing="selective"),
            "precision": with_strategy(base, precision="fp8"),
            "parameter_dtype": with_strategy(base, parameter_dtype="fp32"),
            "gradient_dtype": job(zero_stage=0, gradient_dtype="fp32"),
            "optimizer_state_dtype": with_strategy(base, optimizer_state_dtype="bf16"),
            "cuda_graphs": with_strategy(base, cuda_graphs=True),
            "gradient_as_bucket_view": with_strategy(base, gradient_as_bucket_view=False),
            "checkpoint_loading": job(checkpoint_loading="rank0"),
            "offload": with_workload(job(zero_stage=3, offload="nvme"), optimizer="sgd"),
        }
        check_every_field_has_a_fate(write, written, refused, WITHOUT_MEANING)

    def test_all_that_is_refused_is_named_at_once(self) -> None:
        both = with_strategy(job(), cuda_graphs=True, precision="fp8", parameter_dtype="bf16")
        with pytest.raises(NotExpressible) as caught:
            write(both)
        assert {"cuda_graphs", "precision"} <= set(caught.value.reasons)

    def test_models_without_next_token_loss_are_refused(self) -> None:
        with pytest.raises(NotExpressible) as caught:
            write(launch_job("bert-large", framework="deepspeed"))
        assert set(caught.value.reasons) == {"model"}


STATED = {
    *("framework", "zero_stage", "micro_batch_size", "data_parallel_size", "precision", "parameter_dtype"),
    *("gradient_dtype", "offload"),
}
"""What every file says."""


@st.composite
def jobs(draw: st.DrawFn) -> LaunchJob:
    stage = draw(st.sampled_from((0, 1, 2, 3)))
    precision = draw(st.sampled_from(("bf16", "fp16", "fp32")))
    strategy: dict[str, Any] = {
        "zero_stage": stage,
        "precision": precision,
        "micro_batch_size": draw(st.sampled_from((1, 2, 4))),
        "activation_checkpointing": draw(st.sampled_from(("none", "full"))),
    }
    if stage:
        strategy["gradient_dtype"] = draw(st.sampled_from((precision, "fp32")))
        strategy["overlap_communication"] = draw(st.booleans())
        strategy["offload"] = draw(st.sampled_from(("none", "optimizer")))
    if stage == 3:
        strategy["offload"] = draw(st.sampled_from(("none", "optimizer", "optimizer-and-parameters", "nvme")))
        strategy["secondary_shard_size"] = draw(st.sampled_from((1, 2, 8)))
        strategy["checkpoint_saving"] = draw(st.sampled_from(("sharded", "full")))
        if strategy["offload"].startswith("optimizer"):
            strategy["offload_fraction"] = draw(st.sampled_from((1.0, 0.4)))
    if strategy["activation_checkpointing"] == "full":
        strategy["checkpointed_layers"] = draw(st.integers(1, 32))
    split = draw(st.sampled_from(("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size", None)))
    if split and stage < 2:
        strategy[split] = 2
        if split == "pipeline_parallel_size":
            strategy.pop("checkpointed_layers", None)
            first = draw(st.integers(1, 31))
            strategy["layers_per_stage"] = [first, 32 - first]
            if strategy["activation_checkpointing"] == "full":
                strategy["checkpointed_layers"] = max(first, 32 - first)
    if strategy.get("offload", "none") == "none":
        optimizer = draw(st.sampled_from(("adamw", "adam", "sgd", "sgd-momentum", "adafactor", "muon")))
    else:
        optimizer = draw(st.sampled_from(("adamw", "adam")))
    workload = Workload(sequence_length=4096, global_batch_size=64, precision=precision, optimizer=optimizer)
    return job(workload, **strategy)


class TestRoundTrip:
    @given(jobs())
    def test_what_is_written_is_read(self, planned: LaunchJob) -> None:
        parsed = parse(write(planned).files[0].content)
        assert parsed.unmapped == ()
        assert {name: planned.strategy[name] for name in parsed.strategy} == parsed.strategy
        expected = set(STATED)
        if planned.strategy["zero_stage"]:
            expected.add("overlap_communication")
        if planned.strategy["zero_stage"] == 3:
            expected |= {"secondary_shard_size", "checkpoint_saving"}
        for name in ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size"):
            if planned.strategy[name] > 1:
                expected.add(name)
        if planned.strategy["offload_fraction"] < 1:
            expected.add("offload_fraction")
        if planned.strategy["activation_checkpointing"] == "full":
            expected |= {"activation_checkpointing", "checkpointed_layers"}
        assert expected <= set(parsed.strategy)
        assert parsed.workload == {
            "global_batch_size": 64,
            "precision": planned.strategy["precision"],
            "optimizer": planned.workload.optimizer,
        }


class TestParse:
    def test_a_file_of_the_trainer_leaves_auto_open(self) -> None:
        text = json.dumps(
            {
                "bf16": {"enabled": "auto"},
                "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": 2,
            }
        )
        parsed = parse(text)
        assert parsed.strategy["zero_stage"] == 3
        assert parsed.strategy["micro_batch_size"] == 2
        assert "precision" not in parsed.strategy
        assert parsed.unmapped == ("bf16.enabled", "zero_optimization.reduce_bucket_size", "train_batch_size")

    def test_nothing_said_is_stage_0_in_fp32(self) -> None:
        parsed = parse("{}")
        assert (parsed.strategy["zero_stage"], parsed.strategy["precision"]) == (0, "fp32")

    def test_zero_3_overlaps_unless_told_otherwise(self) -> None:
        for stage, overlaps in ((2, False), (3, True)):
            parsed = parse(json.dumps({"zero_optimization": {"stage": stage}}))
            assert parsed.strategy["overlap_communication"] is overlaps

    def test_mics_is_replication(self) -> None:
        batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
        parsed = parse(json.dumps({**batch, "zero_optimization": {"stage": 3, "mics_shard_size": 8}}))
        assert (parsed.strategy["data_parallel_size"], parsed.strategy["data_parallel_replicate_size"]) == (16, 2)

    def test_adam_is_adamw_unless_told_otherwise(self) -> None:
        for params, optimizer in (({}, "adamw"), ({"adam_w_mode": False}, "adam")):
            assert parse(json.dumps({"optimizer": {"type": "Adam", "params": params}})).workload["optimizer"] == (
                optimizer
            )

    def test_the_first_spelling_of_offload(self) -> None:
        parsed = parse(json.dumps({"zero_optimization": {"stage": 2, "cpu_offload": True}}))
        assert parsed.strategy["offload"] == "optimizer"

    def test_what_has_no_field_is_named(self) -> None:
        text = json.dumps(
            {
                "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 3}},
                "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "zero_quantized_weights": True},
                "compile": {"deepcompile": True},
            }
        )
        assert parse(text).unmapped == (
            "optimizer.type",
            "optimizer.params.freeze_step",
            "zero_optimization.offload_param.device",
            "zero_optimization.zero_quantized_weights",
            "compile.deepcompile",
        )

    @pytest.mark.parametrize(
        ("text", "place", "code"),
        [
            ("{\n  broken", (), "syntax"),
            ("[]", (), "syntax"),
            ("[" * 100_000, (), "syntax"),
            ('{"steps_per_print": ' + "1" * 5000 + "}", (), "syntax"),
            ('{"bf16": {}, "bf16": {}}', ("bf16",), "duplicate_key"),
            ('{"bf16": true}', ("bf16",), "not_an_object"),
            ('{"zero_optimization": true}', ("zero_optimization",), "not_an_object"),
            ('{"zero_optimization": {"stage": 4}}', ("zero_optimization", "stage"), "unknown_value"),
            ('{"zero_optimization": {"stage": true}}', ("zero_optimization", "stage"), "unknown_value"),
            ('{"train_batch_size": 0}', ("train_batch_size",), "not_a_size"),
            ('{"train_batch_size": 1e400}', ("train_batch_size",), "not_a_size"),
            ('{"train_batch_size": NaN}', ("train_batch_size",), "not_a_size"),
            ('{"train_batch_size": [8]}', ("train_batch_size",), "not_a_size"),
            ('{"bf16": {"enabled": 1}}', ("bf16", "enabled"), "not_a_boolean"),
            ('{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', ("fp16", "enabled"), "exclusive"),
            (
                '{"pipeline": {"stages": 2, "layers_per_stage": [1, "a"]}}',
                ("pipeline", "layers_per_stage"),
                "not_sizes",
            ),
            (
                '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}',
                ("train_batch_size",),
                "batch_not_divisible",
            ),
        ],
    )
    def test_bad_text_has_a_place_and_a_rule(self, text: str, place: tuple[str, ...], code: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse(text)
        assert (caught.value.loc, caught.value.code) == (("content", *place), code)

    def test_a_slip_of_syntax_has_its_line(self) -> None:
        with pytest.raises(InvalidInput, match="line 2"):
            parse("{\n  broken")

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner)))
    def test_any_value_is_read_or_refused(self, value: Any) -> None:
        names = ("train_batch_size", "zero_optimization", "bf16", "optimizer", "pipeline", "data_types")
        for text in (json.dumps(dict.fromkeys(names, value)), json.dumps({"zero_optimization": {"stage": value}})):
            with contextlib.suppress(InvalidInput):
                parse(text)
