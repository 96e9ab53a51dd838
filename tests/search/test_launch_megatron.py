"""Target `megatron-lm`: its arguments against the recorded parser, and what it refuses."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from cost_models.strategy import COLUMNS
from cost_models.workload import FineTuning, Workload
from search.launch.job import LaunchFile, LaunchJob, NotExpressible
from search.launch.megatron_arguments import micro_batch_group, recomputed_in_each_chunk
from search.launch.megatron_lm import arguments, write
from search.launch.megatron_refusals import WITHOUT_MEANING
from search.launch.megatron_words import Options, pattern
from tests.search.launch_jobs import gpus, launch_job

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "launch" / "megatron_lm_options.json").read_text())
WORK = Workload(sequence_length=4096, global_batch_size=512, training_tokens=1e12)
SHORT = Workload(sequence_length=2048, global_batch_size=512, training_tokens=1e12)
JOBS = {
    "plain": launch_job(),
    "gpt": launch_job("gpt-3-175b", gpus(64), SHORT, tensor_parallel_size=8, pipeline_parallel_size=8),
    "fp16": launch_job("gpt-2-xl", workload=Workload(1024, 64, precision="fp16", optimizer="sgd-momentum")),
    "fsdp": launch_job("llama-3-70b", gpus(64), WORK, zero_stage=3, data_parallel_replicate_size=2),
    "interleaved": launch_job(
        "llama-3-70b", gpus(64), WORK, tensor_parallel_size=4, pipeline_parallel_size=4, virtual_pipeline_size=5
    ),
    "uneven": launch_job("llama-3.1-405b", gpus(128), WORK, tensor_parallel_size=8, pipeline_parallel_size=16),
    "mxfp8": launch_job(
        workload=WORK,
        cluster=gpus(8, "dgx-b200"),
        precision="fp8",
        fp8_recipe="mxfp8",
        parameter_dtype="fp8",
        zero_stage=1,
    ),
    "nvfp4": launch_job("llama-3-8b", gpus(8, "dgx-b200"), WORK, precision="nvfp4", zero_stage=1),
    "offload": launch_job(zero_stage=1, offload="optimizer", offload_fraction=0.5, gradient_dtype="bf16"),
    "activations": launch_job(offload="activations"),
    "states": launch_job(zero_stage=1, optimizer_state_dtype="bf16", activation_checkpointing="full"),
    "eight-bit": launch_job(workload=Workload(4096, 64, optimizer="adamw-8bit"), zero_stage=1),
    "adam": launch_job(workload=Workload(4096, 64, optimizer="adam", fused_loss=True, dropout=0.1)),
    "muon": launch_job(workload=Workload(4096, 64, optimizer="muon", attention="eager"), zero_stage=1),
    "graphs": launch_job(cuda_graphs=True, context_parallel_size=2, context_parallel_kind="all-to-all"),
    "block": launch_job(pipeline_parallel_size=2, activation_checkpointing="full", checkpointed_layers=5),
    "mixture": launch_job("mixtral-8x7b", expert_parallel_size=4, precision="fp8", kernels="partly-fused"),
    "latent": launch_job(
        "deepseek-v3",
        gpus(256),
        WORK,
        pipeline_parallel_size=16,
        expert_parallel_size=16,
        activation_checkpointing="selective",
        recompute_modules=["mla_up_proj", "moe_act", "layernorm"],
        zero_stage=1,
    ),
    "sinks": launch_job("gpt-oss-20b", expert_parallel_size=8),
    "window": launch_job("mistral-7b", overlap_communication=False),
    "biases": launch_job("qwen2.5-7b", tensor_parallel_size=4),
    "norms": launch_job("qwen3-8b"),
}


def accepts(name: str, values: tuple[str, ...]) -> bool:
    """Whether the recorded parser takes these values; shell variables are what a person fills in."""
    kind = RECORDED["options"][name]
    if kind == "flag":
        return not values
    if isinstance(kind, list):
        return len(values) == 1 and values[0] in kind
    if kind in ("str*", "float+", "int+", "str+"):
        return kind == "str*" or len(values) >= 1
    (value,) = values
    if value.startswith("${"):
        return True
    if kind == "pattern":
        return not re.search(r"[^,\d\[\]\(\)\+\*]", value) and _length(value) > 0
    parts = value.split(",") if kind == "ints" else [value]
    for part in parts:
        {"int": int, "float": float, "str": str, "ints": int}[kind](part)
    return True


def _length(expression: str) -> int:
    return len(eval(compile(ast.parse(expression, mode="eval"), "", "eval"), {"__builtins__": {}}))


@pytest.mark.parametrize("name", JOBS)
def test_the_recorded_parser_takes_every_argument(name: str) -> None:
    for option, values in arguments(JOBS[name]).items():
        assert option in RECORDED["options"], option
        assert accepts(option, values), (option, values)


@pytest.mark.parametrize("name", JOBS)
def test_the_script_has_exactly_these_arguments_and_the_batch_that_was_asked_for(name: str) -> None:
    job = JOBS[name]
    script = write(job).files[0].content
    command = script[script.index("torchrun") :].replace("\\\n", " ")
    words = shlex.split(command)
    options: Options = {}
    for word in words[words.index("${MEGATRON_LM:?folder of Megatron-LM}/pretrain_gpt.py") + 1 :]:
        if word.startswith("--"):
            options[word] = ()
            name = word
        else:
            options[name] = (*options[name], word)
    assert options == arguments(job)
    assert options["--global-batch-size"] == (str(job.workload.global_batch_size),)
    assert words[words.index("--nproc-per-node") + 1] == "8"


def value(job: LaunchJob, option: str) -> str:
    (found,) = arguments(job)[option]
    return found


class TestModel:
    def test_dimensions_of_a_grouped_gated_model(self) -> None:
        written = arguments(JOBS["plain"])
        expected = {
            "--num-layers": "32",
            "--hidden-size": "4096",
            "--ffn-hidden-size": "14336",
            "--num-attention-heads": "32",
            "--num-query-groups": "8",
            "--kv-channels": "128",
            "--normalization": "RMSNorm",
            "--position-embedding-type": "rope",
            "--vocab-size": "128256",
        }
        assert {name: written[name][0] for name in expected} == expected
        for flag in ("--swiglu", "--group-query-attention", "--disable-bias-linear"):
            assert written[flag] == ()
        assert "--untie-embeddings-and-output-weights" in written
        assert "--num-experts" not in written

    def test_a_plain_model_with_biases_and_learned_positions(self) -> None:
        written = arguments(JOBS["gpt"])
        for flag in ("--swiglu", "--disable-bias-linear", "--group-query-attention", "--add-qkv-bias"):
            assert flag not in written
        assert written["--position-embedding-type"] == ("learned_absolute",)
        assert written["--max-position-embeddings"] == ("2048",)
        assert written["--normalization"] == ("LayerNorm",)

    def test_the_vocabulary_is_padded_for_the_tensor_ranks(self) -> None:
        assert value(launch_job("gpt-2-xl"), "--padded-vocab-size") == str(50304)
        assert value(launch_job("gpt-2-xl", tensor_parallel_size=8), "--padded-vocab-size") == str(51200)

    def test_latent_attention_and_first_dense_layers(self) -> None:
        written = arguments(JOBS["latent"])
        expected = {
            "--q-lora-rank": "1536",
            "--kv-lora-rank": "512",
            "--qk-head-dim": "128",
            "--qk-pos-emb-head-dim": "64",
            "--v-head-dim": "128",
            "--num-experts": "256",
            "--moe-router-topk": "8",
            "--moe-ffn-hidden-size": "2048",
            "--moe-shared-expert-intermediate-size": "2048",
            "--moe-layer-freq": "([0]*3+[1]*58)",
            "--ffn-hidden-size": "18432",
        }
        assert {name: written[name][0] for name in expected} == expected

    def test_windows_sinks_and_the_clamped_activation(self) -> None:
        written = arguments(JOBS["sinks"])
        assert written["--window-size"] == ("127,0",)
        assert written["--window-attn-skip-freq"] == ("([1,0]*12)",)
        assert written["--softmax-type"] == ("learnable",)
        assert "--quick-geglu" in written
        assert "--disable-bias-linear" not in written
        assert arguments(JOBS["window"])["--window-size"] == ("4095,0",)

    def test_biases_of_queries_keys_and_values_only(self) -> None:
        assert {"--add-qkv-bias", "--disable-bias-linear"} <= set(arguments(JOBS["biases"]))

    @pytest.mark.parametrize(
        ("model", "why"),
        [
            ("palm-540b", "parallel"),
            ("bloom-176b", "ALiBi"),
            ("gemma-2-27b", "two norms"),
            ("bert-large", "encoder"),
            ("vit-h", "language model"),
            ("qwen2-57b-a14b", "gate"),
        ],
    )
    def test_models_that_no_argument_makes_are_named(self, model: str, why: str) -> None:
        work = Workload(sequence_length=257 if model == "vit-h" else 512, global_batch_size=64)
        with pytest.raises(NotExpressible) as refused:
            write(launch_job(model, workload=work))
        assert why in refused.value.reasons["model"]


class TestPipeline:
    def test_an_uneven_layout_is_spelled_out(self) -> None:
        layout = value(JOBS["uneven"], "--pipeline-model-parallel-layout")
        assert layout == "Et*7|" + "t*8|" * 14 + "t*7L"

    def test_empty_chunks_stay_empty(self) -> None:
        job = launch_job(pipeline_parallel_size=4, layers_per_stage=[0, 16, 16, 0])
        assert value(job, "--pipeline-model-parallel-layout") == "E|t*16|t*16|L"

    def test_an_even_interleaving_has_a_number_of_chunks(self) -> None:
        written = arguments(JOBS["interleaved"])
        assert written["--num-virtual-stages-per-pipeline-rank"] == ("5",)
        assert "--pipeline-model-parallel-layout" not in written
        assert "--no-overlap-p2p-communication" not in written

    @pytest.mark.parametrize(
        ("micro_batches", "stages", "group"), [(8, 4, 4), (4, 4, 4), (9, 4, 5), (6, 4, 6), (7, 4, 7)]
    )
    def test_micro_batches_in_a_row(self, micro_batches: int, stages: int, group: int) -> None:
        assert micro_batch_group(micro_batches, stages) == group

    def test_without_overlap_interleaving_needs_three_stages(self) -> None:
        fields: dict[str, Any] = {"virtual_pipeline_size": 2, "overlap_communication": False}
        assert "--no-overlap-p2p-communication" in arguments(launch_job(pipeline_parallel_size=4, **fields))
        with pytest.raises(NotExpressible) as refused:
            write(launch_job(pipeline_parallel_size=2, **fields))
        assert list(refused.value.reasons) == ["overlap_communication"]


class TestRecomputation:
    def test_some_layers_of_each_stage(self) -> None:
        written = arguments(JOBS["block"])
        assert written["--recompute-method"] == ("block",)
        assert written["--recompute-num-layers"] == ("5",)

    def test_all_layers_one_by_one(self) -> None:
        written = arguments(JOBS["states"])
        assert written["--recompute-method"] == ("uniform",)
        assert written["--recompute-num-layers"] == ("1",)

    @pytest.mark.parametrize(("layers", "number"), [(4, 2), (6, 3), (5, None)])
    def test_layers_are_counted_in_each_chunk(self, layers: int, number: int | None) -> None:
        job = launch_job(
            pipeline_parallel_size=4,
            virtual_pipeline_size=2,
            activation_checkpointing="full",
            checkpointed_layers=layers,
        )
        assert recomputed_in_each_chunk(job.strategy) == number

    def test_no_modules_is_not_the_default_module(self) -> None:
        job = launch_job(activation_checkpointing="selective", recompute_modules=[])
        assert arguments(job)["--recompute-modules"] == ()


class TestData:
    def test_stages_of_sharding(self) -> None:
        assert "--use-distributed-optimizer" not in arguments(launch_job())
        assert "--overlap-param-gather" not in arguments(launch_job())
        assert {"--use-distributed-optimizer", "--overlap-param-gather"} <= set(arguments(launch_job(zero_stage=1)))
        assert value(launch_job(zero_stage=2), "--data-parallel-sharding-strategy") == "optim_grads"
        assert value(launch_job(zero_stage=3), "--data-parallel-sharding-strategy") == "optim_grads_params"
        assert value(launch_job(zero_stage=3), "--ckpt-format") == "fsdp_dtensor"

    def test_steps_are_whole(self) -> None:
        assert value(launch_job(workload=WORK), "--train-iters") == str(-(-(10**12) // (4096 * 512)))

    def test_nothing_overlaps_where_it_should_not(self) -> None:
        written = arguments(launch_job(overlap_communication=False, zero_stage=1))
        assert not {"--overlap-grad-reduce", "--overlap-param-gather"} & set(written)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("pipeline_schedule", {"pipeline_schedule": "zero-bubble", "pipeline_parallel_size": 2}),
    ("fp8_recipe", {"precision": "fp8", "fp8_recipe": "rowwise"}),
    ("parameter_dtype", {"parameter_dtype": "fp32"}),
    ("parameter_dtype", {"precision": "fp8", "parameter_dtype": "fp8"}),
    ("gradient_dtype", {"gradient_dtype": "fp16"}),
    ("optimizer_state_dtype", {"optimizer_state_dtype": "bf16"}),
    ("offload", {"offload": "optimizer-and-parameters", "zero_stage": 3}),
    ("offload", {"offload": "activations", "pipeline_parallel_size": 2}),
    ("compile", {"compile": True}),
    ("kernels", {"kernels": "eager"}),
    ("gradient_as_bucket_view", {"gradient_as_bucket_view": False}),
    ("checkpoint_loading", {"checkpoint_loading": "rank0"}),
    ("checkpoint_saving", {"checkpoint_saving": "full"}),
    ("secondary_shard_size", {"secondary_shard_size": 2}),
    ("expandable_segments", {"cuda_graphs": True, "expandable_segments": True}),
    ("cuda_graphs", {"cuda_graphs": True, "activation_checkpointing": "full"}),
    ("checkpointed_layers", {"activation_checkpointing": "selective", "checkpointed_layers": 3}),
]


def test_what_does_not_go_together_is_refused() -> None:
    graphs: dict[str, Any] = {"cuda_graphs": True, "activation_checkpointing": "selective"}
    half: dict[str, Any] = {"precision": "fp16", "activation_checkpointing": "selective"}
    for field, job in (
        ("cuda_graphs", launch_job(workload=Workload(4096, 64, dropout=0.1), **graphs)),
        ("cuda_graphs", launch_job(cuda_graphs=True, offload="activations")),
        ("recompute_modules", launch_job("mixtral-8x7b", recompute_modules=["moe_act"], **half)),
    ):
        with pytest.raises(NotExpressible) as refused:
            write(job)
        assert list(refused.value.reasons) == [field]
    assert write(launch_job(**graphs)).files


@pytest.mark.parametrize(("field", "strategy"), REFUSED)
def test_what_has_no_argument_is_refused_by_name(field: str, strategy: dict[str, Any]) -> None:
    with pytest.raises(NotExpressible) as refused:
        write(launch_job(**strategy))
    assert list(refused.value.reasons) == [field]
    assert refused.value.target == "megatron-lm"


def test_every_refusal_is_named_at_once() -> None:
    tuning = Workload(4096, 64, fine_tuning=FineTuning("lora"))
    with pytest.raises(NotExpressible) as refused:
        write(launch_job(workload=tuning, compile=True, kernels="eager"))
    assert set(refused.value.reasons) == {"fine_tuning", "compile", "kernels"}


CHANGES: dict[str, dict[str, Any]] = {
    "data_parallel_replicate_size": {"data_parallel_replicate_size": 2, "zero_stage": 1},
    "secondary_shard_size": {"secondary_shard_size": 2},
    "tensor_parallel_size": {"tensor_parallel_size": 2},
    "sequence_parallel": {"tensor_parallel_size": 2, "sequence_parallel": False},
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "virtual_pipeline_size": {"pipeline_parallel_size": 2, "virtual_pipeline_size": 2},
    "pipeline_schedule": {"pipeline_parallel_size": 2, "pipeline_schedule": "gpipe"},
    "layers_per_stage": {"pipeline_parallel_size": 2, "layers_per_stage": [17, 15]},
    "context_parallel_size": {"context_parallel_size": 2},
    "context_parallel_kind": {"context_parallel_kind": "all-gather"},
    "expert_parallel_size": {"expert_parallel_size": 2},
    "expert_tensor_parallel_size": {"tensor_parallel_size": 4, "expert_tensor_parallel_size": 2},
    "zero_stage": {"zero_stage": 1},
    "micro_batch_size": {"micro_batch_size": 2},
    "activation_checkpointing": {"activation_checkpointing": "full"},
    "recompute_modules": {"activation_checkpointing": "selective", "recompute_modules": ["layernorm"]},
    "checkpointed_layers": {"activation_checkpointing": "full", "checkpointed_layers": 3},
    "offload": {"offload": "optimizer", "zero_stage": 1},
    "offload_fraction": {"offload": "optimizer", "zero_stage": 1, "offload_fraction": 0.25},
    "precision": {"precision": "fp8"},
    "fp8_recipe": {"precision": "fp8", "fp8_recipe": "blockwise"},
    "parameter_dtype": {"precision": "fp8", "parameter_dtype": "fp8", "zero_stage": 1},
    "gradient_dtype": {"gradient_dtype": "bf16"},
    "optimizer_state_dtype": {"optimizer_state_dtype": "fp16", "zero_stage": 1},
    "overlap_communication": {"overlap_communication": False},
    "compile": {"compile": True},
    "kernels": {"kernels": "partly-fused"},
    "cuda_graphs": {"cuda_graphs": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": False},
    "expandable_segments": {"expandable_segments": True},
    "checkpoint_loading": {"checkpoint_loading": "every-rank"},
    "checkpoint_saving": {"checkpoint_saving": "full"},
}
"""Each field away from its default, with what it needs."""


@pytest.mark.parametrize("field", COLUMNS)
def test_every_field_is_written_refused_or_without_meaning(field: str) -> None:
    if field == "framework" or field in WITHOUT_MEANING:
        assert field not in CHANGES
        return
    model = "mixtral-8x7b" if field.startswith("expert") else "llama-3-8b"
    with_it = CHANGES[field]
    without = {name: wanted for name, wanted in with_it.items() if name != field}
    written = outcome(launch_job(model, **with_it))
    if isinstance(written, dict):
        assert field in written
    else:
        assert written != outcome(launch_job(model, **without))


def outcome(job: LaunchJob) -> tuple[LaunchFile, ...] | dict[str, str]:
    """The files, or what is refused."""
    try:
        return write(job).files
    except NotExpressible as refused:
        return refused.reasons


def test_patterns_are_as_short_as_they_are_clear() -> None:
    assert pattern([0, 1, 1]) == "([0]*1+[1]*2)"
    assert pattern([1, 1, 0, 1, 1, 0]) == "([1,1,0]*2)"


def test_one_file_on_one_node_and_a_slurm_script_on_many() -> None:
    assert [file.path for file in write(JOBS["plain"]).files] == ["train.sh"]
    assert write(JOBS["plain"]).command == "bash train.sh"
    many = write(JOBS["gpt"])
    assert [file.path for file in many.files] == ["train.sh", "train.sbatch"]
    assert many.command == "sbatch train.sbatch"
    assert "bash train.sh\n" in many.files[1].content


@pytest.mark.parametrize(
    ("dispatch", "experts", "dispatcher"),
    [("hierarchical", 16, "flex"), ("hierarchical", 8, "alltoall"), ("all-to-all", 16, "alltoall")],
)
def test_tokens_travel_as_they_were_priced(
    dispatch: Literal["all-to-all", "hierarchical"], experts: int, dispatcher: str
) -> None:
    cluster = gpus(64)
    place = replace(cluster, inter_node=replace(cluster.inter_node, expert_dispatch=dispatch))
    job = launch_job("deepseek-v3", place, WORK, expert_parallel_size=experts, zero_stage=1)
    written = arguments(job)
    assert written["--moe-token-dispatcher-type"] == (dispatcher,)
    assert ("--moe-enable-deepep" in written) == (dispatcher == "flex")
