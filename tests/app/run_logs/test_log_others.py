"""Logs of nanotron, torchtune, DeepSpeed and the Hugging Face Trainer."""

from __future__ import annotations

import pytest

from app.run_logs.deepspeed_lines import read_memory_usage
from app.run_logs.facts import Facts, LoggedRun, Reading
from app.run_logs.hf_trainer import read_deepspeed, read_hf_trainer
from app.run_logs.launch_environment import read_launch
from app.run_logs.torchtune import read_torchtune
from tests.app.run_logs.excerpts import read_log


def test_nanotron() -> None:
    format, (run,) = read_log("nanotron.log")
    assert format == "nanotron"
    assert run.sections == {
        "model": {
            "architecture": {
                "layers": 16,
                "hidden_size": 2048,
                "attention_heads": 32,
                "key_value_heads": 8,
                "ffn_hidden_size": 8192,
                "vocab_size": 49152,
                "max_position_embeddings": 4096,
                "gated_mlp": True,
                "position_embeddings": "rotary",
                "tied_embeddings": True,
            }
        },
        "workload": {"global_batch_size": 64, "sequence_length": 4096, "precision": "bf16"},
        "strategy": {
            "framework": "nanotron",
            "micro_batch_size": 4,
            "data_parallel_size": 2,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "context_parallel_size": 1,
            "sequence_parallel": True,
            "zero_stage": 1,
            "activation_checkpointing": "none",
            "gradient_dtype": "fp32",
        },
    }
    assert run.gpus == 8
    # what was read while the model was built is left out
    assert run.readings == (Reading(stage=0, allocated_gib=30.0, reserved_gib=40.0),)
    # 4.71 s, 4.69 s and 0.998 s (of the last line only what comes after the time is missing)
    assert run.step_seconds == 4.69


def test_torchtune_with_its_config() -> None:
    format, (run,) = read_log("torchtune.log")
    assert format == "torchtune"
    assert run.sections["strategy"] == {
        "framework": "fsdp2",
        "zero_stage": 3,
        "micro_batch_size": 2,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "activation_checkpointing": "full",
        "parameter_dtype": "bf16",
        "gradient_dtype": "bf16",
        "optimizer_state_dtype": "bf16",
    }
    assert run.sections["workload"] == {"precision": "bf16", "sequence_length": 2048}
    assert run.readings == (Reading(rank=0, allocated_gib=31.25, reserved_gib=34.5),)
    # 2 · 4 · 2048 packed tokens at 4096 and 4000 a second
    assert run.step_seconds == (4.0 + 4.096) / 2


CONFIG = """$ tune run full_finetune_single_device --config llama2/7B_full_low_memory
INFO:torchtune.utils._logging:Running FullFinetuneRecipeSingleDevice with resolved config:
batch_size: 2
compile: false
dtype: bf16
enable_activation_offloading: {offloading}
fsdp_cpu_offload: {cpu}
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
optimizer:
  _component_: {optimizer}
  lr: 2.0e-05
tokenizer:
  _component_: torchtune.models.llama2.llama2_tokenizer
Step 1 | loss:1.94 peak_memory_alloc:30.25 peak_memory_reserved:33.5 tokens_per_second_per_gpu:1000.0
"""


@pytest.mark.parametrize(
    ("settings", "optimizer", "offload", "states"),
    [
        (("false", "false", "torch.optim.AdamW"), "adamw", None, "bf16"),
        (("true", "false", "bitsandbytes.optim.PagedAdamW8bit"), "adamw-8bit", "activations", None),
        (("false", "true", "torch.optim.AdamW"), "adamw", "optimizer-and-parameters", "bf16"),
        (("false", "false", "my.Optimizer"), None, None, "bf16"),
    ],
)
def test_techniques_of_torchtune(
    settings: tuple[str, str, str], optimizer: str | None, offload: str | None, states: str | None
) -> None:
    text = CONFIG.format(offloading=settings[0], cpu=settings[1], optimizer=settings[2])
    (run,) = read_torchtune(text.splitlines(keepends=True))
    strategy = run.sections["strategy"]
    assert run.sections["workload"].get("optimizer") == optimizer
    assert (("workload", "optimizer") in run.asks) is (optimizer is None)
    assert (strategy.get("offload"), strategy.get("optimizer_state_dtype")) == (offload, states)
    assert strategy["compile"] is False


def test_a_progress_bar_of_torchtune() -> None:
    _, (run,) = read_log("torchtune_bar.log")
    assert run.gpus == 1
    assert run.step_seconds == 5.1  # 50 s and 52 s for ten steps, after 60 s
    assert run.readings == ()
    assert ("workload", "fine_tuning") in run.asks


def test_deepspeed() -> None:
    format, (run,) = read_log("deepspeed.log")
    assert format == "deepspeed"
    assert run.sections == {
        "strategy": {
            "framework": "deepspeed",
            "micro_batch_size": 8,
            "data_parallel_size": 8,
            "zero_stage": 3,
            "pipeline_parallel_size": 1,
            "offload": "optimizer",
        },
        "workload": {"global_batch_size": 128, "precision": "bf16", "optimizer": "adamw"},
    }
    # 24.09 GB belong to the set-up
    assert run.readings == (Reading(rank=0, allocated_gib=19.8, reserved_gib=22.0),)
    assert run.step_seconds == 4.0  # 128 at 32 a second


def test_hf_trainer() -> None:
    format, (run,) = read_log("hf_trainer.log")
    assert format == "hf-trainer"
    assert run.sections["model"]["hf_config"]["num_hidden_layers"] == 22
    assert run.sections["strategy"] == {
        "framework": "ddp",
        "micro_batch_size": 4,
        "data_parallel_size": 2,
        "zero_stage": 0,
        "pipeline_parallel_size": 1,
        "activation_checkpointing": "full",
    }
    assert run.sections["workload"] == {"global_batch_size": 16, "precision": "bf16", "optimizer": "adamw"}
    assert run.readings == (Reading(rank=0, reserved_gib=6.5),)
    # 1, 5, 10, 15 steps after 4, 10, 20, 30 s: 1.5 s (warm-up), 2 s, 2 s
    assert run.step_seconds == 2.0


def test_a_summary_alone_is_an_average_of_all_steps() -> None:
    summary = "{'train_runtime': 100.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}\n"
    (run,) = read_hf_trainer([summary])
    assert run.step_seconds == 2.0
    assert "step_seconds is the average of all steps, warm-up included" in run.notes


def test_memory_metrics_of_the_trainer_add_up() -> None:
    gib = 2**30
    summary = (
        f"{{'before_init_mem_gpu': 0, 'init_mem_gpu_alloc_delta': {gib}, 'train_mem_gpu_alloc_delta': {2 * gib}, "
        f"'train_mem_gpu_peaked_delta': {4 * gib}, 'train_runtime': 10.0}}\n"
    )
    (run,) = read_hf_trainer([summary])
    assert run.readings == (Reading(rank=0, allocated_gib=7.0),)


@pytest.mark.parametrize(
    ("allocated", "held", "peak", "reserved"),
    [
        (8.2, 9.43, 9, 9.43),  # what is held rounds to the peak
        (9.41, 9.43, 9, 9.43),
        (8.0, 8.5, 12, 12.0),  # the allocator gave back
        (9.49, 8.0, 9, 9.49),  # never less than what is allocated
    ],
)
def test_reserved_memory_of_deepspeed_is_finer_than_it_prints(
    allocated: float, held: float, peak: int, reserved: float
) -> None:
    facts = Facts()
    line = f"[utils.py:1:see_memory_usage] MA 1.0 GB         Max_MA {allocated} GB  CA {held} GB  Max_CA {peak} GB \n"
    read_memory_usage(line, facts, training=True)
    assert facts.run().readings == (Reading(rank=0, allocated_gib=allocated, reserved_gib=reserved),)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("+ PYTORCH_ALLOC_CONF=expandable_segments:True\n", True),
        ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,expandable_segments:False\n", False),
        ("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation\n", None),
    ],
)
def test_the_allocators_setting(line: str, value: bool | None) -> None:
    facts = Facts()
    read_launch(line, facts)
    assert facts.said("strategy.expandable_segments") is value


def trained(*lines: str) -> LoggedRun:
    (run,) = read_hf_trainer([*(f"{line}\n" for line in lines), "{'train_runtime': 9.0, 'train_loss': 1.5}\n"])
    return run


@pytest.mark.parametrize(
    "line",
    [
        "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.06",
        "[INFO:swift] model: PeftModelForCausalLM(",
        "peft_config=LoraConfig(r=16)",
    ],
)
def test_adapters_are_asked_for(line: str) -> None:
    assert trained(line, line).asks == (("workload", "fine_tuning"),)
    assert trained("no adapters").asks == ()


@pytest.mark.parametrize(
    ("line", "optimizer"),
    [
        ("optim=OptimizerNames.ADAMW_TORCH,", "adamw"),
        ("optim=OptimizerNames.PAGED_ADAMW_8BIT,", "adamw-8bit"),
        ("optim=OptimizerNames.LION,", None),
        ("[INFO] [config.py:752:print]   optimizer_name ............... adam", "adamw"),
        ("[INFO] [config.py:752:print]   optimizer_name ............... onebitlamb", None),
    ],
)
def test_optimizers_that_are_not_known_are_asked_for(line: str, optimizer: str | None) -> None:
    run = trained(line)
    assert run.sections.get("workload", {}).get("optimizer") == optimizer
    assert (("workload", "optimizer") in run.asks) is (optimizer is None)


BARS = [
    "Loading checkpoint shards: 100%|####| 4/4 [00:40<00:00, 10.0s/it]",
    "Map:  10%|#   | 100/1000 [00:05<00:45, 20 examples/s]",
    "Map: 100%|####| 1000/1000 [00:55<00:00, 20 examples/s]",
]
TRAINING_BARS = [
    f" {step}%|#   | {step}/100 [{3 * step // 60:02}:{3 * step % 60:02}<05:00,  3.0s/it]" for step in range(0, 60, 10)
]
EVALUATION_BARS = ["  0%|    | 0/50 [00:00<?, ?it/s]", "100%|####| 50/50 [00:50<00:00, 1.0it/s]"]


@pytest.mark.parametrize("header", [[], ["  Total optimization steps = 100"]])
def test_only_the_bar_of_training_is_timed(header: list[str]) -> None:
    lines = [*BARS, *header, *TRAINING_BARS, *EVALUATION_BARS]
    (run,) = read_hf_trainer([f"{line}\n" for line in lines])
    assert run.step_seconds == 3.0


def test_a_bar_before_training_is_the_set_up() -> None:
    memory = "[utils.py:1:see_memory_usage] MA 1.0 GB         Max_MA 9.0 GB         CA 9.5 GB         Max_CA 10 GB "
    assert list(read_deepspeed([f"{line}\n" for line in (*BARS, memory)])) == []
