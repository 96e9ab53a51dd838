"""Logs of Megatron-LM and Megatron-DeepSpeed, old and new."""

from __future__ import annotations

from typing import Any

import pytest

from app.run_logs.facts import Facts, LoggedRun, Reading
from app.run_logs.megatron import read_megatron
from app.run_logs.megatron_words import say_arguments
from tests.app.run_logs.excerpts import read_log


def only(name: str, format: str = "megatron-lm") -> LoggedRun:
    found, runs = read_log(name)
    assert found == format
    assert len(runs) == 1
    return runs[0]


def test_a_log_of_2021() -> None:
    run = only("megatron_2021.log")
    assert run.sections["model"] == {
        "architecture": {
            "layers": 12,
            "hidden_size": 2048,
            "attention_heads": 16,
            "key_value_heads": 16,
            "ffn_hidden_size": 8192,
            "gated_mlp": False,
            "tied_embeddings": True,
            "position_embeddings": "learned",
            "max_position_embeddings": 1024,
            "norm": "layernorm",
            "biases": True,
            "vocab_size": 50257,  # as it was before it was padded
        }
    }
    assert run.sections["workload"] == {
        "sequence_length": 1024,
        "global_batch_size": 8,
        "precision": "fp16",
        "optimizer": "adamw",
        "dropout": 0.1,
        "attention": "eager",
    }
    assert run.sections["strategy"] == {
        "framework": "megatron-lm",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "context_parallel_size": 1,
        "data_parallel_size": 1,
        "sequence_parallel": False,
        "micro_batch_size": 1,
        "virtual_pipeline_size": 1,
        "pipeline_schedule": "1f1b",
        "activation_checkpointing": "full",
        "zero_stage": 0,
        "offload": "none",
        "overlap_communication": False,
        "gradient_dtype": "fp32",
    }
    assert run.gpus == 4


def test_two_memory_records_on_a_line() -> None:
    assert only("megatron_2021.log").readings == (
        Reading(rank=1, allocated_gib=6.0, reserved_gib=7000 / 1024),
        Reading(rank=0, allocated_gib=6.0, reserved_gib=7.0),
        Reading(rank=3, allocated_gib=5120.5 / 1024, reserved_gib=6000 / 1024),
        Reading(rank=2, allocated_gib=5.0, reserved_gib=6.0),
    )


def test_the_step_time_is_the_median_without_the_first_interval_and_the_cut_off_line() -> None:
    # 1300, 1310, 1290, 1400 ms; 2400 is warm-up, and of the last line digits are missing
    assert only("megatron_2021.log").step_seconds == 1.305


def test_a_log_of_2026_with_a_restart() -> None:
    format, runs = read_log("megatron_2026.log")
    assert format == "megatron-lm"
    first, second = runs
    assert first.sections["model"]["architecture"] == {
        "layers": 16,
        "hidden_size": 4096,
        "attention_heads": 32,
        "key_value_heads": 8,
        "ffn_hidden_size": 8192,
        "gated_mlp": True,
        "tied_embeddings": False,
        "position_embeddings": "rotary",
        "max_position_embeddings": 8192,
        "norm": "rmsnorm",
        "biases": False,
        "vocab_size": 128256,
        "experts": 32,
        "experts_per_token": 4,
        "expert_ffn_hidden_size": 1536,
        "shared_expert_ffn_hidden_size": 3072,
        "first_dense_layers": 1,
    }
    assert first.sections["workload"] == {
        "sequence_length": 8192,
        "global_batch_size": 64,
        "precision": "fp8",
        "optimizer": "adamw",
        "dropout": 0.0,
        "attention": "flash",
    }
    assert first.sections["strategy"] == {
        "framework": "megatron-lm",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "context_parallel_size": 2,
        "context_parallel_kind": "ring",
        "data_parallel_size": 4,
        "expert_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": True,
        "micro_batch_size": 2,
        "virtual_pipeline_size": 2,
        "pipeline_schedule": "interleaved",
        "activation_checkpointing": "selective",
        "recompute_modules": ["core_attn", "moe_act"],
        "zero_stage": 1,
        "offload": "none",
        "overlap_communication": True,
        "fp8_recipe": "blockwise",
        "gradient_dtype": "fp32",
    }
    assert first.readings == (
        Reading(rank=0, allocated_gib=40.0, reserved_gib=50.0),
        Reading(rank=16, allocated_gib=38.0, reserved_gib=48.0),
    )
    assert (first.step_seconds, second.step_seconds) == (4.1, 4.3)
    assert second.sections["strategy"] == first.sections["strategy"]
    assert second.readings == ()


def test_a_command_line() -> None:
    run = only("megatron_command.log")
    assert run.sections["cluster"] == {"nodes": 2, "gpus_per_node": 4}
    architecture = run.sections["model"]["architecture"]
    assert (architecture["vocab_size"], architecture["gated_mlp"], architecture["biases"]) == (32001, True, False)
    strategy = run.sections["strategy"]
    assert (strategy["zero_stage"], strategy["activation_checkpointing"]) == (1, "selective")
    assert (run.sections["workload"]["precision"], run.sections["workload"]["attention"]) == ("bf16", "flash")
    assert run.step_seconds == 0.4
    assert "read from a command line: what it leaves out has Megatron-LM's default" in run.notes


def test_version_1() -> None:
    run = only("megatron_version1.log")
    assert run.sections["workload"]["global_batch_size"] == 16  # 4 a GPU, 8 GPUs / 2
    assert run.sections["strategy"]["tensor_parallel_size"] == 2
    assert "vocab_size" not in run.sections["model"]["architecture"]
    assert run.readings == (Reading(rank=0, allocated_gib=2.0, reserved_gib=2.5),)
    assert run.step_seconds == 0.3025


def test_megatron_deepspeed_in_seconds_with_a_ramped_batch() -> None:
    run = only("megatron_seconds.log", "megatron-deepspeed")
    assert run.sections["workload"]["global_batch_size"] == 16
    assert run.step_seconds == 11.25  # 11.0, 11.5: 12.0 is the first interval at the final batch
    assert run.sections["strategy"]["zero_stage"] == 1
    assert run.sections["model"]["architecture"]["position_embeddings"] == "alibi"
    # 9.5 GB came before the first iteration
    assert run.readings == (Reading(rank=0, allocated_gib=7.25, reserved_gib=9.0),)


def test_a_memory_record_that_comes_again_is_another_run() -> None:
    line = "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: {} | reserved: 4096.0 \n"
    runs = list(read_megatron([line.format(2048.0), line.format(2048.0), line.format(1024.0)]))
    assert [run.readings[0].allocated_gib for run in runs] == [2.0, 1.0]


def test_what_the_device_shows() -> None:
    line = (
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1024.00 | max allocated: 2048.00 | reserved: 3072.00 | "
        "max reserved: 3072.00 | total device memory used: 4096.00\n"
    )
    (run,) = read_megatron([line])
    assert run.readings == (Reading(rank=0, allocated_gib=2.0, reserved_gib=3.0, device_gib=4.0),)


def test_a_plan_by_operator_asks_for_its_degrees() -> None:
    lines = [
        "------------------------ arguments ------------------------\n",
        "  data_parallel_size_of_each_op ................... [[1, 1], [2]]\n",
        "  hidden_size ..................................... 1024\n",
        "  num_stages ...................................... 2\n",
        "  tensor_model_parallel_size ...................... 1\n",
        "  world_size ...................................... 4\n",
        "-------------------- end of arguments ---------------------\n",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 5; 39.39 GiB total "
        "capacity; 35.88 GiB already allocated; 370.81 MiB free; 36.81 GiB reserved in total by PyTorch)\n",
    ]
    (run,) = read_megatron(lines)
    assert run.out_of_memory
    assert run.readings == (Reading(allocated_gib=35.88, reserved_gib=36.81),)
    assert "tensor_parallel_size" not in run.sections["strategy"]
    assert run.sections["strategy"]["pipeline_parallel_size"] == 2
    assert ("strategy", "data_parallel_size") in run.asks


BLOCK = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}
FOUR_STAGES = {"pipeline_model_parallel_size": 4}
ENDS_COUNTED = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, "zero_stage", 3),
        ({"use_torch_fsdp2": True}, "framework", "fsdp2"),
        (BLOCK, "checkpointed_layers", 3),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, "offload_fraction", 0.5),
        (FOUR_STAGES | {"num_layers": 10, "decoder_first_pipeline_num_layers": 1}, "layers_per_stage", [1, 3, 3, 3]),
        (FOUR_STAGES | {"num_layers": 14} | ENDS_COUNTED, "layers_per_stage", [3, 4, 4, 3]),
        ({"context_parallel_size": 2, "cp_comm_type": "a2a"}, "context_parallel_kind", "all-to-all"),
        ({"fp16": True}, "gradient_dtype", "fp16"),
    ],
)
def test_arguments_in_the_contracts_words(arguments: dict[str, Any], path: str, value: Any) -> None:
    facts = Facts()
    say_arguments(arguments, facts, dumped=True)
    assert facts.said(f"strategy.{path}") == value


def test_an_uneven_pipeline_that_cannot_be_told_is_asked_for() -> None:
    facts = Facts()
    say_arguments(
        {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*3|t*5L"}, facts, dumped=True
    )
    assert ("strategy", "layers_per_stage") in facts.asks


@pytest.mark.parametrize(
    ("arguments", "first_dense_layers"),
    [
        ({"moe_layer_freq": 1}, None),
        ({"moe_layer_freq": "([0]*3+[1]*5)"}, 3),
        ({"moe_layer_freq": "[0, 1, 1, 1]"}, 1),
        ({"moe_layer_freq": "[1, 1]"}, None),
        ({"num_experts": "[8]", "expert_interval": 1}, None),
    ],
)
def test_experts_from_some_layer_on(arguments: dict[str, Any], first_dense_layers: int | None) -> None:
    facts = Facts()
    say_arguments({"num_experts": 8, "num_layers": 8} | arguments, facts, dumped=True)
    architecture = facts.sections["model"]["architecture"]
    assert (architecture["experts"], architecture.get("first_dense_layers")) == (8, first_dense_layers)


@pytest.mark.parametrize(
    "arguments",
    [
        {"moe_layer_freq": 2},
        {"moe_layer_freq": "([0, 1]*4)"},
        {"moe_layer_freq": "([1]*1+[0]*1)"},
        {"expert_interval": 2},
        {"num_experts": "[8, 16]"},
    ],
)
def test_experts_here_and_there_are_no_architecture(arguments: dict[str, Any]) -> None:
    facts = Facts()
    say_arguments({"num_experts": 8, "num_layers": 8} | arguments, facts, dumped=True)
    assert "model" not in facts.sections


@pytest.mark.parametrize("experts", ["[1]", 1, None])
def test_one_expert_is_none(experts: Any) -> None:
    facts = Facts()
    say_arguments({"num_experts": experts, "num_layers": 8, "expert_interval": 2}, facts, dumped=True)
    assert facts.sections["model"]["architecture"]["layers"] == 8
    assert "experts" not in facts.sections["model"]["architecture"]
    assert facts.said("strategy.expert_parallel_size") is None


DUMP_AROUND_DEEPSPEED = [
    "------------------------ arguments ------------------------\n",
    "  deepspeed ....................................... True\n",
    "  zero_stage ...................................... {}\n",
    "-------------------- end of arguments ---------------------\n",
]
ITERATION = " iteration        1/       5 | elapsed time per iteration (ms): 33.0 | \n"


def test_the_stage_of_zero_is_that_of_the_engine() -> None:
    default = [line.format("1.0") for line in DUMP_AROUND_DEEPSPEED]
    (run,) = read_megatron([*default, ITERATION])
    assert "zero_stage" not in run.sections["strategy"]  # an untouched default, which the engine need not have
    engine = [
        "[2024-01-01 00:00:00,000] [INFO] [config.py:1000:print]   train_batch_size ............. 512\n",
        "[2024-01-01 00:00:00,000] [INFO] [config.py:1000:print]   zero_optimization_stage ...... 2\n",
    ]
    (run,) = read_megatron([*default, *engine, ITERATION])
    assert (run.sections["strategy"]["zero_stage"], run.sections["workload"]["global_batch_size"]) == (2, 512)
    (run,) = read_megatron([*(line.format("3") for line in DUMP_AROUND_DEEPSPEED), ITERATION])
    assert run.sections["strategy"]["zero_stage"] == 3


COMMAND = (
    "pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-layers 80 "
    "--hidden-size 8192 --num-attention-heads 64 --bf16\n"
)
SIZES = """Number of parameters in transformer block in billions: {layers}
Number of parameters in embedding layers in billions: 0.26
Number of parameters in most loaded shard in billions: {shard}
Theoretical memory footprints: weight and optimizer={mebibytes} MB
"""


def sized(layers: float, shard: float, bytes_each: float) -> LoggedRun:
    sizes = SIZES.format(layers=layers, shard=shard, mebibytes=round(shard * 1e9 * bytes_each / 2**20, 2))
    (run,) = read_megatron([COMMAND, *sizes.splitlines(keepends=True), ITERATION])
    return run


def test_sizes_that_a_command_line_gives() -> None:
    run = sized(64.43, (64.43 / 4 + 0.26) / 4, 18)
    assert run.doubts == {}
    strategy = run.sections["strategy"]
    assert (strategy["tensor_parallel_size"], strategy["pipeline_parallel_size"], strategy["zero_stage"]) == (4, 4, 0)
    assert run.sections["workload"]["dropout"] == 0.1  # the program's default


def test_degrees_that_the_sizes_contradict_are_asked_for() -> None:
    run = sized(64.43, 2.0794, 18)  # of eight stages
    assert set(run.doubts) == {("strategy", "tensor_parallel_size"), ("strategy", "pipeline_parallel_size")}
    assert "pipeline_parallel_size" not in run.sections["strategy"]
    assert run.sections["strategy"]["zero_stage"] == 0


def test_dimensions_that_the_sizes_contradict_are_asked_for() -> None:
    run = sized(85.9, (85.9 / 4 + 0.26) / 4, 18)  # gated
    assert ("model", "architecture", "gated_mlp") in run.doubts
    assert "gated_mlp" not in run.sections["model"]["architecture"]
    assert run.sections["model"]["architecture"]["layers"] == 80


def test_sharded_states_show_in_the_bytes_of_a_parameter() -> None:
    run = sized(64.43, (64.43 / 4 + 0.26) / 4, 6 + 12 / 8)
    assert run.sections["strategy"]["zero_stage"] == 1


def test_savers_that_a_strategy_cannot_say_are_noted() -> None:
    facts = Facts()
    say_arguments({"checkpoint_activations": True, "partition_activations": True}, facts, dumped=True)
    assert facts.said("strategy.activation_checkpointing") == "full"
    assert "partition_activations: saves memory in a way that a Strategy cannot say" in facts.notes


def test_latent_attention_is_no_architecture() -> None:
    facts = Facts()
    say_arguments({"multi_latent_attention": True, "num_layers": 4}, facts, dumped=True)
    assert "model" not in facts.sections
