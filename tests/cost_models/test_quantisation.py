"""QLoRA: NF4 bytes as its paper counts them, memory of public runs, and the time that dequantising takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.explicit_architecture import build_architecture
from cost_models.memory import estimate_memory, fit
from cost_models.problem import Problem
from cost_models.quantisation import CONSTANT_BYTES, DEQUANTISATION_OPERATORS, mean_weight_bytes, quantised_weights
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from cost_models.workload import FineTuning
from tests.cost_models.problems import a100, h100, make_problem, resolved

GIB = 2**30
ONE_A100 = {"nodes": 1, "gpus_per_node": 1, "gpu": "a100-sxm4-40gb"}
QLORA = FineTuning("qlora", 8, "attention-qv")


def memory(problem: Problem, **strategy: Any) -> MemoryEstimate:
    table = resolved(problem, {"framework": "ddp", **strategy})
    return estimate_memory(problem, table, all_stages(problem.model, table))


def seconds(problem: Problem, **strategy: Any) -> TimeEstimate:
    table = resolved(problem, strategy)
    return estimate_time(problem, table, all_stages(problem.model, table))


def matrices(problem: Problem) -> int:
    return sum(quantised_weights(problem.model.blocks[kind]) for kind in problem.model.layer_blocks)


def test_constants_take_what_the_paper_says() -> None:
    # arXiv 2305.14314, section 3: double quantisation takes them from 0.5 to 0.127 bits a parameter.
    assert round(CONSTANT_BYTES * 8, 3) == 0.127


def test_all_matrices_of_the_blocks_are_quantised_and_nothing_else() -> None:
    problem = make_problem("llama-2-7b", ONE_A100, sequence_length=1304, global_batch_size=8, fine_tuning=QLORA)
    model = problem.model
    packed = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert matrices(problem) == packed
    rank, layers = 8, 32
    adapters = layers * 2 * rank * (4096 + 4096)
    # Adapters in fp32 (PEFT) and, under autocast, copies of them in 16 bit.
    expected = packed * (0.5 + 1 / 64 + 4 / 16384) + 2 * (model.parameters - packed) + (4 + 2) * adapters
    parts = memory(problem).parts
    assert parts["parameters"][0] == pytest.approx(expected, rel=1e-12)
    assert memory(problem, parameter_dtype="bf16").parts["parameters"][0] == pytest.approx(expected, rel=1e-12)
    assert parts["gradients"][0] == pytest.approx(4 * adapters)


@pytest.mark.parametrize(
    ("model", "sequence_length", "published_gib"),
    [("llama-2-7b", 1304, 12.890), ("llama-2-13b", 1304, 21.001)],
)
def test_runs_of_litgpt(model: str, sequence_length: int, published_gib: float) -> None:
    # LitGPT's resource tables, nf4-dq. Its bitsandbytes of 2023 kept the inputs of frozen products as well (until
    # 0.43.2, pull request 1270): 2 bytes for each element that enters one.
    problem = make_problem(
        model, ONE_A100, sequence_length=sequence_length, global_batch_size=128, fine_tuning=QLORA, optimizer="adamw"
    )
    (block,) = problem.model.blocks
    widths = {"k": block.linears[0].in_features, "o": block.linears[3].in_features}
    widths |= {"gate": block.linears[0].in_features, "down": block.linears[-1].in_features}
    # Its recipe drops 5 % of what adapters read (finetune/lora.py): a mask, and the dropped input of q, k and v.
    dropped = 3 * widths["k"]
    kept = (2 * sum(widths.values()) + dropped) * sequence_length * problem.model.layers
    found = memory(problem, kernels="eager").peak_allocated_bytes[0]
    assert found / GIB < published_gib
    assert (found + kept) / GIB == pytest.approx(published_gib, rel=0.10)


def test_65b_fine_tunes_on_one_gpu_of_48_gb() -> None:
    # arXiv 2305.14314, abstract and section 4: LLaMA-65B, adapters of rank 64 on all linear layers, checkpointing.
    problem = make_problem(
        "llama-2-7b",
        {"nodes": 1, "gpus_per_node": 1, "gpu": "rtx-a6000-48gb"},
        sequence_length=512,
        global_batch_size=16,
        optimizer="adamw-8bit",
        fine_tuning=FineTuning("qlora", 64, "all-linear"),
    )
    sizes = {"layers": 80, "hidden_size": 8192, "attention_heads": 64, "key_value_heads": 64}
    llama = build_architecture(
        sizes | {"ffn_hidden_size": 22016, "gated_mlp": True, "vocab_size": 32000, "tied_embeddings": False}
    )
    found = memory(replace(problem, model=llama), activation_checkpointing="full")
    assert found.peak_bytes[0] > 33e9
    assert fit(problem, found, 0.5).fits[0]


def test_70b_on_two_gpus_with_fsdp() -> None:
    # PEFT's guide on FSDP: Llama 2 70B, rank 8, 2 GPUs, micro-batch 2, accumulated twice: 35.6 GB a GPU. Adapters are
    # flattened apart from the packed weights, which have no gradients.
    problem = make_problem(
        "llama-2-70b",
        {"nodes": 1, "gpus_per_node": 2, "gpu": "a100-sxm4-40gb"},
        sequence_length=2048,
        global_batch_size=8,
        fine_tuning=FineTuning("qlora", 8),
    )
    strategy = {"framework": "fsdp1", "zero_stage": 3, "micro_batch_size": 2, "activation_checkpointing": "full"}
    found = memory(problem, **strategy, kernels="eager")
    assert found.peak_bytes[0] == pytest.approx(35.6e9, rel=0.10)
    assert found.parts["gradients"][0] < 0.2e9


@pytest.mark.parametrize(("framework", "divided_by"), [("deepspeed", 1), ("fsdp1", 1), ("fsdp2", 8)])
def test_sharding_divides_the_constants_that_are_part_of_the_weight(framework: str, divided_by: int) -> None:
    problem = make_problem("llama-2-7b", a100(1), global_batch_size=64, fine_tuning=QLORA)
    (whole,) = memory(problem).parts["parameters"]
    adapters = 32 * 2 * 8 * (4096 + 4096)
    (sharded,) = memory(problem, framework=framework, zero_stage=3).parts["parameters"]
    constants = CONSTANT_BYTES * matrices(problem)
    # DDP keeps adapters in fp32, with copies in 16 bit under autocast; the others have them in 16 bit.
    whole -= 4 * adapters
    assert sharded == pytest.approx((whole - constants) / 8 + constants / divided_by)


def test_backward_holds_one_matrix_in_16_bit() -> None:
    lora = make_problem("llama-2-7b", ONE_A100, global_batch_size=8, fine_tuning=FineTuning("lora", 8), fused_loss=True)
    qlora = replace(lora, workload=replace(lora.workload, fine_tuning=FineTuning("qlora", 8)))
    plain, packed = (
        memory(problem, activation_checkpointing="full").parts["activations"][0] for problem in (lora, qlora)
    )
    assert packed - plain == pytest.approx(2 * 4096 * 11008)


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 1), ("full", 2)])
def test_every_use_reads_the_packed_weight_and_writes_a_16_bit_one(checkpointing: str, passes: int) -> None:
    strategy = {"framework": "fsdp2", "zero_stage": 3, "micro_batch_size": 4, "activation_checkpointing": checkpointing}
    lora = make_problem("llama-3-8b", h100(1), global_batch_size=32, fine_tuning=FineTuning("lora", 16))
    qlora = replace(lora, workload=replace(lora.workload, fine_tuning=FineTuning("qlora", 16)))
    plain, packed = (seconds(problem, **strategy) for problem in (lora, qlora))
    kernels = default_coefficients().kernels
    moving = 2.5 * matrices(lora) / (lora.cluster.gpu.memory_bytes_per_s * kernels.memory_efficiency)
    gaps = DEQUANTISATION_OPERATORS * 7 * 32 * kernels.kernel_gap_seconds
    again = passes - 1
    for part, expected in {
        "forward": moving + gaps,
        "backward": moving + 2 * gaps,
        "recompute": again * (moving + gaps),
    }.items():
        assert packed.parts[part][0] - plain.parts[part][0] == pytest.approx(expected, rel=1e-6), part
    # Half a byte travels where two did, but for embedding, head and norms.
    assert mean_weight_bytes(qlora) == pytest.approx(2 * (1 - 0.75 * matrices(lora) / lora.model.parameters))
    assert np.all(packed.parts["data_parallel"] <= plain.parts["data_parallel"])
