"""Megatron-LM's arguments read back: what is written here, and what people's scripts say."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cost_models.errors import InvalidInput
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules.check import violations
from cost_models.strategy import partial_columns
from cost_models.workload import Workload
from search.launch.job import LaunchJob, NotExpressible
from search.launch.megatron_lm import write
from search.launch.parse_megatron import parse
from tests.search.launch_jobs import gpus, launch_job
from tests.search.test_launch_megatron import JOBS

SCRIPT = """#!/bin/bash
# Runs the "175B" parameter model, as examples/gpt3/train_gpt3_175b_distributed.sh does
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --weight-decay 0.1
    --fp16
    --lr 6.0e-5
    --clip-grad 1.0
)
MODEL_PARALLEL_ARGS="
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
    --tp-comm-overlap"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} $MODEL_PARALLEL_ARGS --save "$CHECKPOINT_PATH" 2>&1 | tee log.txt
"""

MODELS = ("gpt-2-xl", "llama-3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "gpt-oss-20b")
FIELDS: dict[str, list[Any]] = {
    "tensor_parallel_size": [1, 2, 4, 8],
    "context_parallel_size": [1, 2],
    "context_parallel_kind": ["ring", "all-gather", "all-to-all"],
    "pipeline_parallel_size": [1, 2, 4],
    "virtual_pipeline_size": [1, 2, 3],
    "pipeline_schedule": ["1f1b", "interleaved", None],
    "expert_parallel_size": [1, 2, 4, 8],
    "expert_tensor_parallel_size": [None, 1, 2],
    "sequence_parallel": [None, True, False],
    "zero_stage": [0, 1, 2, 3],
    "data_parallel_replicate_size": [1, 1, 2],
    "micro_batch_size": [1, 2],
    "activation_checkpointing": ["none", "selective", "full"],
    "checkpointed_layers": [None, None, 1, 3, 6],
    "recompute_modules": [["core_attn"], [], ["layernorm"], ["core_attn", "mlp"], ["moe_act", "layernorm"], ["moe"]],
    "offload": ["none", "none", "optimizer", "activations"],
    "offload_fraction": [None, None, 0.5],
    "precision": ["bf16", "fp16", "fp8", "fp32"],
    "fp8_recipe": [None, "tensorwise", "blockwise"],
    "parameter_dtype": [None, None, "fp8"],
    "gradient_dtype": [None, None, "bf16", "fp32"],
    "optimizer_state_dtype": [None, None, "bf16", "int8"],
    "overlap_communication": [True, False],
    "kernels": ["fused", "partly-fused"],
    "cuda_graphs": [False, False, True],
    "expandable_segments": [False, True],
}

IDLE = (
    ("recompute_modules", "activation_checkpointing", ("selective",)),
    ("checkpointed_layers", "activation_checkpointing", ("selective", "full")),
    ("offload_fraction", "offload", ("optimizer", "activations")),
    ("fp8_recipe", "precision", ("fp8",)),
)
"""Fields that mean nothing unless another one has such a value: there is nothing to write, and nothing to read back."""


@st.composite
def jobs(draw: st.DrawFn) -> LaunchJob:
    """Plans that keep every rule: a few fields away from their defaults, so that most draws do."""
    chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=9, unique=True))
    asked = {name: value for name in chosen if (value := draw(st.sampled_from(FIELDS[name]))) is not None}
    for field, at, working in IDLE:
        if asked.get(at) not in working:
            asked.pop(field, None)
    optimizer = draw(st.sampled_from(["adamw", "adam", "adamw-8bit", "sgd", "sgd-momentum", "muon"]))
    loss, dropout = draw(st.booleans()), draw(st.sampled_from([0.0, 0.1]))
    work = Workload(1024, 96, optimizer=optimizer, fused_loss=loss, dropout=dropout)
    job = launch_job(draw(st.sampled_from(MODELS)), gpus(draw(st.sampled_from([8, 16]))), work, **asked)
    problem = Problem(job.model, job.cluster, job.workload)
    table = resolve_strategies(problem, partial_columns([job.strategy])).table
    assume(not violations(problem, table).any())
    return job


@settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(jobs())
def test_what_is_written_reads_back_as_the_same_strategy(job: LaunchJob) -> None:
    try:
        files = write(job)
    except NotExpressible:
        assume(False)
    for_one_node = files.files[0].content
    parsed = parse(for_one_node)
    assert dict(parsed.strategy) == dict(job.strategy)
    assert parsed.unmapped == ()
    assert parsed.workload == {
        "sequence_length": job.workload.sequence_length,
        "global_batch_size": job.workload.global_batch_size,
        "precision": job.strategy["precision"],
        "optimizer": "adamw-8bit" if job.strategy["optimizer_state_dtype"] == "int8" else job.workload.optimizer,
        "attention": "flash",
        "fused_loss": job.workload.fused_loss,
        "dropout": job.workload.dropout,
    }


@pytest.mark.parametrize("name", JOBS)
def test_every_kind_of_plan_reads_back(name: str) -> None:
    parsed = parse(write(JOBS[name]).files[0].content)
    assert dict(parsed.strategy) == dict(JOBS[name].strategy)
    assert parsed.unmapped == ()


def test_tokens_are_those_of_whole_steps() -> None:
    job = JOBS["gpt"]
    tokens = parse(write(job).files[0].content).workload["training_tokens"]
    assert job.workload.training_tokens is not None
    assert 0 <= tokens - job.workload.training_tokens < job.workload.tokens


class TestModel:
    def test_of_a_mixture(self) -> None:
        assert parse(write(JOBS["mixture"]).files[0].content).model == {
            "layers": 32,
            "hidden_size": 4096,
            "attention_heads": 32,
            "key_value_heads": 8,
            "ffn_hidden_size": 14336,
            "gated_mlp": True,
            "vocab_size": 32000,
            "tied_embeddings": False,
            "max_position_embeddings": 32768,
            "position_embeddings": "rotary",
            "biases": False,
            "norm": "rmsnorm",
            "experts": 8,
            "experts_per_token": 2,
            "expert_ffn_hidden_size": 14336,
        }

    @pytest.mark.parametrize("name", ["latent", "window", "sinks", "norms"])
    def test_of_what_an_architecture_cannot_say(self, name: str) -> None:
        assert parse(write(JOBS[name]).files[0].content).model == {}

    def test_of_dense_layers_first(self) -> None:
        base = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --num-experts 8"
        assert parse(f'{base} --moe-layer-freq "([0]*1+[1]*3)"').model["first_dense_layers"] == 1
        assert parse(f'{base} --moe-layer-freq "([1,0]*2)"').model == {}


class TestOthersScripts:
    def test_arrays_variables_and_comments(self) -> None:
        parsed = parse(SCRIPT)
        expected = {
            "framework": "megatron-lm",
            "tensor_parallel_size": 8,
            "pipeline_parallel_size": 16,
            "data_parallel_size": 1,
            "layers_per_stage": [6] * 16,
            "zero_stage": 0,
            "precision": "fp16",
            "gradient_dtype": "fp16",
            "sequence_parallel": False,
            "overlap_communication": False,
            "activation_checkpointing": "none",
        }
        assert {name: parsed.strategy[name] for name in expected} == expected
        assert parsed.workload == {
            "precision": "fp16",
            "optimizer": "adamw",
            "sequence_length": 2048,
            "global_batch_size": 1536,
            "dropout": 0.1,
            "fused_loss": False,
            "attention": "flash",
            "training_tokens": 500000.0 * 1536 * 2048,
        }
        assert parsed.unmapped == ("--tp-comm-overlap",)

    def test_a_bare_list_of_arguments(self) -> None:
        words = ["--tensor-model-parallel-size", "2", "--bf16", "--micro-batch-size=4"]
        for text in (" ".join(words), "\n".join(words), json.dumps(words)):
            parsed = parse(text)
            assert parsed.strategy["tensor_parallel_size"] == 2
            assert parsed.strategy["micro_batch_size"] == 4
            assert parsed.strategy["precision"] == "bf16"
            assert "data_parallel_size" not in parsed.strategy

    @pytest.mark.parametrize(
        ("options", "layers"),
        [
            ("--decoder-first-pipeline-num-layers 5", [5, 9, 9, 9]),
            ("--decoder-last-pipeline-num-layers 5", [9, 9, 9, 5]),
            ("--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6", [6, 10, 10, 6]),
            ("--num-layers-per-virtual-pipeline-stage 4", [4] * 8),
            ("--num-virtual-stages-per-pipeline-rank 2", [4] * 8),
            ('--pipeline-model-parallel-layout "Et*7|(t*9|)*2t*7L"', [7, 9, 9, 7]),
        ],
    )
    def test_layouts(self, options: str, layers: list[int]) -> None:
        parsed = parse(f"--num-layers 32 --pipeline-model-parallel-size 4 {options}")
        assert parsed.strategy["layers_per_stage"] == layers
        assert parsed.strategy["virtual_pipeline_size"] == len(layers) // 4

    def test_embedding_and_loss_that_count_as_layers(self) -> None:
        ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
        parsed = parse(f"--num-layers 126 --pipeline-model-parallel-size 16 {ends}")
        assert parsed.strategy["layers_per_stage"] == [7, *[8] * 14, 7]

    def test_torch_s_own_sharding_is_another_framework(self) -> None:
        assert parse("--use-torch-fsdp2").strategy["framework"] == "fsdp2"
        assert parse("--use-torch-fsdp2").strategy["zero_stage"] == 3

    def test_groups_of_recomputed_layers_have_no_field(self) -> None:
        full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"
        assert parse(f"{full} 4").unmapped == ("--recompute-num-layers 4",)
        assert parse(f"{full} 1").unmapped == ()

    @pytest.mark.parametrize(
        "option",
        [
            "--distribute-saved-activations",
            "--use-nccl-ub",
            "--fp32-residual-connection",
            "--moe-token-dispatcher-type flex",
            "--cp-comm-type a2a+p2p",
            "--something-new 7",
        ],
    )
    def test_what_no_field_stands_for_is_listed(self, option: str) -> None:
        assert parse(f"--bf16 {option}").unmapped == (option,)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-size 0", "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size"),
        ("--recompute-granularity half", "--recompute-granularity"),
        ("--optimizer-offload-fraction 2", "--optimizer-offload-fraction"),
        ("torchrun --nnodes 1 --nproc-per-node 8 p.py --tensor-model-parallel-size 3", "--nnodes"),
        ("--num-layers 7 --pipeline-model-parallel-size 2", "--pipeline-model-parallel-size"),
        ("--num-layers 7 --pipeline-model-parallel-layout Et*3|t*3L", "--pipeline-model-parallel-layout"),
        ('--pipeline-model-parallel-layout "E(t*9999)*99999L"', "--pipeline-model-parallel-layout"),
    ],
)
def test_what_megatron_would_refuse_is_refused_by_name(text: str, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(text)
    assert refused.value.loc == ("content", place)


@pytest.mark.parametrize(
    "text",
    [
        'torchrun "unclosed',
        "[1, 2",
        "[{}]",
        "A='x x'\n" + "".join('A="$A $A"\n' for _ in range(60)) + "torchrun p.py --lr $A",
        "A=(x x)\n" + "".join("A=(${A[@]} ${A[@]})\n" for _ in range(60)) + "torchrun p.py --lr ${A[@]}",
        "[" * 100_000,
        "A=(" + "x " * 10_000 + ")\n" + "$A\n" * 10_000,
        "A=" + "x" * 10_000 + "\n" + "$A" * 10_000,
        "--bf16 " * 20_000,
    ],
)
def test_text_that_is_none_or_that_swells(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(text)
    assert refused.value.loc == ("content",)


@given(st.text(alphabet="-a=$ {}()[]*'\"\n\\#1;&|<>:?", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert parse(f"torchrun p.py --bf16 {text}").strategy["framework"] == "megatron-lm"


@pytest.mark.parametrize("text", ["garbage", "{", "[]", "123", "x" * 100_000, '{"zero_optimization": {"stage": 3}}'])
def test_text_without_an_argument_of_megatron_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="content"):
        parse(text)
