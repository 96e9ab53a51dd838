"""torchtitan's configuration, and its Python and TOML read back."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InvalidInput
from cost_models.workload import FineTuning
from search.launch.job import LaunchJob, NotExpressible
from search.launch.parse_torchtitan import LARGEST_TEXT, parse
from search.launch.targets import write as write_target
from search.launch.torchtitan import compilation, model_parts, parallelism, training, write
from search.launch.torchtitan_refusals import WITHOUT_MEANING
from tests.search.launch_fields import check_every_field_has_a_fate, with_strategy, with_workload
from tests.search.launch_jobs import gpus, launch_job


def job(model: str = "llama-3-8b", **strategy: Any) -> LaunchJob:
    return launch_job(model, framework="fsdp2", **strategy)


def mixture(**strategy: Any) -> LaunchJob:
    return job("qwen3-30b-a3b", **strategy)


class TestConfig:
    def test_parallelism_without_a_pipeline(self) -> None:
        assert parallelism(job(tensor_parallel_size=2)) == {
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 4,
            "fsdp_reshard_after_forward": "always",
            "tensor_parallel_degree": 2,
            "enable_sequence_parallel": True,
            "context_parallel_degree": 1,
            "expert_parallel_degree": 1,
            "pipeline_parallel_degree": 1,
        }

    def test_a_pipeline_has_names_of_all_modules(self) -> None:
        written = parallelism(job(pipeline_parallel_size=2, layers_per_stage=[15, 17]))
        first, last = written["module_fqns_per_model_part"]
        assert (first[0], first[-1], len(first)) == ("tok_embeddings", "layers.14", 16)
        assert (last[0], last[-2:], len(last)) == ("layers.15", ["norm", "lm_head"], 19)
        assert written["fsdp_reshard_after_forward"] == "never"

    def test_a_chunk_without_layers(self) -> None:
        assert model_parts([0, 2]) == [["tok_embeddings"], ["layers.0", "layers.1", "norm", "lm_head"]]

    @pytest.mark.parametrize(
        ("schedule", "chunks", "name"),
        [
            ("1f1b", 1, "1F1B"),
            ("gpipe", 1, "GPipe"),
            ("interleaved", 2, "Interleaved1F1B"),
            ("interleaved", 4, "Interleaved1F1B"),
            ("zero-bubble", 2, "ZBVZeroBubble"),
        ],
    )
    def test_schedules(self, schedule: str, chunks: int, name: str) -> None:
        planned = job(pipeline_parallel_size=2, virtual_pipeline_size=chunks, pipeline_schedule=schedule)
        assert parallelism(planned)["pipeline_parallel_schedule"] == name

    def test_the_local_batch_of_a_pipeline_is_all_of_a_step(self) -> None:
        piped = training(job(pipeline_parallel_size=2, micro_batch_size=2))
        plain = training(job(micro_batch_size=2))
        assert (piped["local_batch_size"], piped["global_batch_size"]) == (16, 64)  # 64 / 4 data ranks
        assert (plain["local_batch_size"], plain["global_batch_size"]) == (2, 64)

    def test_without_shards_every_rank_is_a_replica(self) -> None:
        written = parallelism(job("qwen3-8b", zero_stage=0))
        assert (written["data_parallel_replicate_degree"], written["data_parallel_shard_degree"]) == (8, 1)

    def test_blocks_and_loss_are_compiled(self) -> None:
        assert compilation(job(compile=True)) == {"enable": True, "components": ["model", "loss"]}


class TestFiles:
    def test_it_is_the_first_target_of_its_framework(self) -> None:
        files = write_target(job())
        assert files.target == "torchtitan"
        assert "-m torchtitan.train" in files.command
        ast.parse(files.files[0].content)

    def test_a_shipped_flavour_is_named(self) -> None:
        for model, flavour in (("llama-3.1-405b", '"405B"'), ("gpt-oss-20b", '"20b"'), ("qwen3-8b", '"8B"')):
            planned = launch_job(model, framework="fsdp2", cluster=gpus(64))
            assert f"model_registry({flavour}, " in write(planned).files[0].content

    def test_a_llama_of_another_shape_is_built(self) -> None:
        files = write(job("llama-2-7b"))
        shape = ("n_layers=32,", "dim=4096,", "n_heads=32,", "n_kv_heads=32,", "hidden_dim=11008,")
        assert "\n            ".join(shape) in files.files[0].content
        assert any("theta" in note for note in files.notes)

    def test_other_models_are_refused(self) -> None:
        with pytest.raises(NotExpressible) as caught:
            write(job("gemma-2-27b"))
        assert set(caught.value.reasons) == {"model"}

    def test_low_precision_is_a_converter(self) -> None:
        content = write(job(precision="fp8", fp8_recipe="rowwise")).files[0].content
        assert 'Float8LinearConverter.Config(recipe_name="rowwise", filter_fqns=["lm_head"]' in content
        assert "nvfp4_bf16_tail_fqns(32, 0.15)" in write(job(precision="nvfp4")).files[0].content


class TestFields:
    def test_every_field_is_written_or_refused_or_has_no_meaning(self) -> None:
        base = job()
        piped = job(pipeline_parallel_size=2)
        wide = launch_job(framework="fsdp2", cluster=gpus(16))
        split = job(tensor_parallel_size=2)
        written = {
            "data_parallel_size": (base, launch_job(framework="fsdp2", cluster=gpus(4))),
            "data_parallel_replicate_size": (
                wide,
                launch_job(framework="fsdp2", cluster=gpus(16), data_parallel_replicate_size=2),
            ),
            "tensor_parallel_size": (base, split),
            "sequence_parallel": (split, job(tensor_parallel_size=2, sequence_parallel=False)),
            "pipeline_parallel_size": (base, piped),
            "virtual_pipeline_size": (
                job(pipeline_parallel_size=2, virtual_pipeline_size=2),
                job(pipeline_parallel_size=2, virtual_pipeline_size=4),
            ),
            "pipeline_schedule": (piped, job(pipeline_parallel_size=2, pipeline_schedule="gpipe")),
            "layers_per_stage": (piped, job(pipeline_parallel_size=2, layers_per_stage=[15, 17])),
            "context_parallel_size": (base, job(context_parallel_size=2)),
            "expert_parallel_size": (mixture(), mixture(expert_parallel_size=4)),
            "zero_stage": (base, job(zero_stage=2)),
            "micro_batch_size": (base, job(micro_batch_size=2)),
            "activation_checkpointing": (base, job(activation_checkpointing="selective")),
            "offload": (base, job(offload="optimizer-and-parameters")),
            "precision": (base, job(precision="fp32")),
            "fp8_recipe": (job(precision="fp8", fp8_recipe="rowwise"), job(precision="fp8", fp8_recipe="mxfp8")),
            "parameter_dtype": (base, job(parameter_dtype="bf16")),
            "optimizer_state_dtype": (base, job(optimizer_state_dtype="bf16")),
            "compile": (base, job(compile=True)),
            "cuda_graphs": (base, job(cuda_graphs=True)),
            "expandable_segments": (base, job(expandable_segments=False)),
            "sequence_length": (base, with_workload(base, sequence_length=2048)),
            "global_batch_size": (base, with_workload(base, global_batch_size=128)),
            "optimizer": (base, with_workload(base, optimizer="adam")),
            "fused_loss": (base, with_workload(base, fused_loss=True)),
            "training_tokens": (base, with_workload(base, training_tokens=1e9)),
        }
        changes: dict[str, Any] = {
            "secondary_shard_size": 2,
            "zero_stage": 1,
            "offload": "activations",
            "offload_fraction": 0.5,
            "precision": "fp16",
            "parameter_dtype": "fp16",
            "gradient_dtype": "bf16",
            "optimizer_state_dtype": "int8",
            "overlap_communication": False,
            "kernels": "fused",
            "gradient_as_bucket_view": False,
            "checkpoint_loading": "rank0",
            "checkpoint_saving": "full",
            "virtual_pipeline_size": 2,
            "pipeline_schedule": "gpipe",
            "layers_per_stage": [30],
            "expert_tensor_parallel_size": 2,
            "sequence_parallel": True,
        }
        refused = {name: with_strategy(base, **{name: value}) for name, value in changes.items()} | {
            "framework": launch_job(framework="ddp"),
            "context_parallel_kind": job(context_parallel_size=2, context_parallel_kind="ring"),
            "checkpointed_layers": job(activation_checkpointing="full", checkpointed_layers=31),
            "fp8_recipe": job(precision="fp8", fp8_recipe="tensorwise"),
            "cuda_graphs": with_strategy(piped, cuda_graphs=True),
            "pipeline_schedule": with_strategy(piped, pipeline_schedule="zero-bubble"),
            "data_parallel_replicate_size": with_strategy(base, zero_stage=0, data_parallel_replicate_size=2),
            "optimizer": with_workload(base, optimizer="muon"),
            "attention": with_workload(base, attention="eager"),
            "dropout": with_workload(base, dropout=0.1),
            "fine_tuning": with_workload(base, fine_tuning=FineTuning("lora")),
        }
        check_every_field_has_a_fate(write, written, refused, WITHOUT_MEANING)


@st.composite
def jobs(draw: st.DrawFn) -> LaunchJob:
    precision = draw(st.sampled_from(("bf16", "fp32", "fp8", "nvfp4")))
    strategy: dict[str, Any] = {
        "zero_stage": draw(st.sampled_from((0, 2, 3))),
        "precision": precision,
        "micro_batch_size": draw(st.sampled_from((1, 2))),
        "activation_checkpointing": draw(st.sampled_from(("none", "selective", "full"))),
        "compile": draw(st.booleans()),
    }
    if precision == "fp8":
        strategy["fp8_recipe"] = draw(st.sampled_from(("rowwise", "mxfp8")))
    if precision != "fp32":
        strategy["parameter_dtype"] = draw(st.sampled_from(("fp32", "bf16")))
    if strategy["zero_stage"]:
        strategy["data_parallel_replicate_size"] = draw(st.sampled_from((1, 2)))
        strategy["offload"] = draw(st.sampled_from(("none", "optimizer-and-parameters")))
        strategy["tensor_parallel_size"] = draw(st.sampled_from((1, 2)))
        strategy["context_parallel_size"] = draw(st.sampled_from((1, 2)))
        if draw(st.booleans()):
            strategy["pipeline_parallel_size"] = 2
            schedule = draw(st.sampled_from(("1f1b", "gpipe", "interleaved", "zero-bubble")))
            strategy["pipeline_schedule"] = schedule
            strategy["virtual_pipeline_size"] = 2 if schedule in ("interleaved", "zero-bubble") else 1
    optimizer = draw(st.sampled_from(("adamw", "adam")))
    planned = launch_job(framework="fsdp2", cluster=gpus(32), **strategy)
    return with_workload(planned, optimizer=optimizer, fused_loss=draw(st.booleans()))


class TestRoundTrip:
    @given(jobs())
    def test_what_is_written_is_read(self, planned: LaunchJob) -> None:
        parsed = parse(write(planned).files[0].content)
        assert parsed.unmapped == ()
        assert {name: planned.strategy[name] for name in parsed.strategy} == parsed.strategy
        expected = {
            *("framework", "data_parallel_size", "tensor_parallel_size", "context_parallel_size", "zero_stage"),
            *("pipeline_parallel_size", "expert_parallel_size", "micro_batch_size", "activation_checkpointing"),
            *("precision", "parameter_dtype", "gradient_dtype", "optimizer_state_dtype", "offload", "compile"),
            "cuda_graphs",
        }
        if planned.strategy["pipeline_parallel_size"] > 1:
            expected |= {"virtual_pipeline_size", "layers_per_stage", "pipeline_schedule"}
        if planned.strategy["zero_stage"]:
            expected.add("data_parallel_replicate_size")
        if planned.strategy["precision"] == "fp8":
            expected.add("fp8_recipe")
        assert expected <= set(parsed.strategy)
        workload = planned.workload
        assert parsed.workload == {
            "sequence_length": workload.sequence_length,
            "global_batch_size": workload.global_batch_size,
            "precision": planned.strategy["precision"],
            "optimizer": workload.optimizer,
            **({"fused_loss": True} if workload.fused_loss else {}),
        }


class TestParse:
    def test_toml_of_the_versions_before(self) -> None:
        parsed = parse(
            """
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "70B"

[optimizer]
name = "AdamW"
lr = 1.5e-4
implementation = "fused"

[training]
local_batch_size = 8
seq_len = 8192
dtype = "float32"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
expert_tensor_parallel_degree = 1
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"

[activation_checkpoint]
mode = "full"

[compile]
enable = true

[quantize.linear.float8]
recipe_name = "tensorwise"
filter_fqns = ["output"]
"""
        )
        assert parsed.strategy == {
            "framework": "fsdp2",
            "tensor_parallel_size": 8,
            "context_parallel_size": 2,
            "context_parallel_kind": "ring",
            "expert_tensor_parallel_size": 1,
            "data_parallel_replicate_size": 1,
            "zero_stage": 3,
            "micro_batch_size": 8,
            "precision": "fp8",
            "fp8_recipe": "tensorwise",
            "parameter_dtype": "fp32",
            "gradient_dtype": "fp32",
            "optimizer_state_dtype": "fp32",
            "activation_checkpointing": "full",
            "compile": True,
        }
        assert parsed.workload == {"sequence_length": 8192, "precision": "fp8", "optimizer": "adamw"}
        assert parsed.unmapped == ("quantize.linear.float8.filter_fqns",)

    def test_assignments_to_a_base_configuration(self) -> None:
        parsed = parse(
            """
from torchtitan.models.llama3.config_registry import llama3_8b

def mine():
    config = llama3_8b()
    config.parallelism.tensor_parallel_degree = 4
    config.parallelism.pipeline_parallel_degree = 2
    config.training.local_batch_size = 4
    config.training.seq_len = LENGTH
    config.activation_checkpoint = None
    return config
"""
        )
        assert parsed.strategy == {
            "framework": "fsdp2",
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 2,
            "zero_stage": 2,
            "activation_checkpointing": "none",
        }
        assert parsed.unmapped == ("training.seq_len",)

    @pytest.mark.parametrize(
        ("text", "place", "code"),
        [
            ("[parallelism\n", (), "syntax"),
            ("def f(:\n", (), "syntax"),
            ("import a\n\x00", (), "syntax"),
            ("import a\n" + "-" * 10_000 + "1", (), "syntax"),
            ("a = " + "[" * 10_000, (), "syntax"),
            ("#" * (LARGEST_TEXT + 1), (), "syntax"),
            ("parallelism = 3", ("parallelism",), "not_an_object"),
            ("[parallelism]\ntensor_parallel_degree = 0", ("parallelism", "tensor_parallel_degree"), "not_a_size"),
            (
                '[parallelism]\nfsdp_reshard_after_forward = "no"',
                ("parallelism", "fsdp_reshard_after_forward"),
                "unknown_value",
            ),
            ("[training]\nenable_cpu_offload = 1", ("training", "enable_cpu_offload"), "not_a_boolean"),
            (
                "[parallelism]\nmodule_fqns_per_model_part = [1]",
                ("parallelism", "module_fqns_per_model_part"),
                "not_modules",
            ),
            (
                "[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [['layers.0']]",
                ("parallelism", "module_fqns_per_model_part"),
                "fewer_layers_than_chunks",
            ),
        ],
    )
    def test_bad_text_has_a_place_and_a_rule(self, text: str, place: tuple[str, ...], code: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse(text)
        assert (caught.value.loc, caught.value.code) == (("content", *place), code)

    def test_a_slip_of_syntax_has_its_line(self) -> None:
        for text in ("[training]\nseq_len = = 1", "import a\nb = = 1"):
            with pytest.raises(InvalidInput, match="line 2"):
                parse(text)
