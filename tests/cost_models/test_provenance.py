"""What the answers say stands behind them."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.answer import full_answers
from cost_models.estimate import estimate
from cost_models.problem import Problem
from cost_models.provenance import FAR, provenance
from cost_models.strategy import FRAMEWORKS, PRECISIONS
from cost_models.workload import FineTuning
from tests.cost_models.problems import a100, h100, make_problem, resolved


def said(problem: Problem, framework: str, precision: str = "bf16", zero_stage: int = 1) -> tuple[str, str, str]:
    """Basis of time and memory, and the notes as one text."""
    found = provenance(problem, FRAMEWORKS.index(framework), PRECISIONS.index(precision), zero_stage)
    return found.time, found.memory, "\n".join(found.notes)


def cluster(gpu: str, nodes: int = 1) -> dict[str, Any]:
    return {"nodes": nodes, "gpus_per_node": 8, "gpu": gpu}


@pytest.mark.parametrize(
    ("gpu", "framework", "time", "memory"),
    [
        ("h100-sxm5-80gb", "megatron-lm", "calibrated", "calibrated"),
        ("h100-sxm5-80gb", "fsdp2", "calibrated", "calibrated"),
        ("h200-sxm5-141gb", "nanotron", "calibrated", "calibrated"),
        ("a100-sxm4-80gb", "megatron-lm", "calibrated", "analytical"),
        ("a100-sxm4-80gb", "ddp", "analytical", "calibrated"),
        ("gb200-186gb", "megatron-lm", "calibrated", "calibrated"),
        ("v100-sxm2-32gb", "megatron-lm", "calibrated", "calibrated"),
        # The silicon of an A10 or a 3090 is not the A100's, which the runs on Ampere were measured on.
        ("a10-24gb", "megatron-lm", "analytical", "analytical"),
        ("rtx-3090-24gb", "fsdp1", "analytical", "analytical"),
        ("h100-sxm5-80gb", "deepspeed", "analytical", "analytical"),
        ("mi300x-192gb", "megatron-lm", "analytical", "analytical"),
        ("mi300x-192gb", "fsdp2", "analytical", "calibrated"),
        ("gaudi2-96gb", "deepspeed", "analytical", "analytical"),
        ("ascend-910b-64gb", "megatron-lm", "analytical", "analytical"),
    ],
)
def test_time_is_of_a_silicon_and_memory_of_a_generation(gpu: str, framework: str, time: str, memory: str) -> None:
    precision = "fp16" if gpu.startswith("v100") else "bf16"
    basis = said(make_problem("llama-3-8b", cluster(gpu), precision=precision), framework, precision)
    assert basis[:2] == (time, memory)


class TestBeyondTheRuns:
    @pytest.mark.parametrize(
        ("model", "fine_tuning", "framework", "time", "memory"),
        [
            ("mixtral-8x7b", None, "megatron-lm", "calibrated", "calibrated"),
            ("mixtral-8x7b", None, "fsdp2", "extrapolated", "analytical"),
            ("bert-large", None, "megatron-lm", "extrapolated", "analytical"),
            ("vit-h", None, "fsdp1", "extrapolated", "analytical"),
            ("llama-3-8b", FineTuning("lora"), "megatron-lm", "calibrated", "analytical"),
            ("llama-3-8b", FineTuning("lora"), "fsdp2", "extrapolated", "analytical"),
        ],
    )
    def test_a_kind_of_model_that_a_framework_was_never_measured_on(
        self, model: str, fine_tuning: FineTuning | None, framework: str, time: str, memory: str
    ) -> None:
        length = 257 if model == "vit-h" else 512
        problem = make_problem(model, h100(1), sequence_length=length, fine_tuning=fine_tuning)
        *basis, notes = said(problem, framework)
        assert basis == [time, memory]
        assert (f"no public measured run of {framework} is of kind" in notes) is (time == "extrapolated")

    def test_a_kind_that_was_measured_on_other_gpus_is_said_to_be(self) -> None:
        time, _, notes = said(make_problem("mixtral-8x7b", a100(4)), "megatron-lm")
        assert time == "calibrated"
        assert "none of these runs is of kind moe; megatron-lm ran such models on other GPUs" in notes

    @pytest.mark.parametrize(
        ("gpu", "precision", "basis"),
        [
            ("h100-sxm5-80gb", "fp8", "calibrated"),
            ("h100-sxm5-80gb", "fp16", "calibrated"),
            ("h100-sxm5-80gb", "fp32", "extrapolated"),
            ("gb200-186gb", "nvfp4", "calibrated"),
            ("a100-sxm4-80gb", "fp32", "extrapolated"),
        ],
    )
    def test_precision_is_of_a_generation_and_16_bit_is_one(self, gpu: str, precision: str, basis: str) -> None:
        assert said(make_problem("llama-3-8b", cluster(gpu), precision=precision), "megatron-lm", precision)[0] == basis

    def test_a_precision_that_only_other_frameworks_ran_is_said_to_be(self) -> None:
        assert (
            "none of these runs is in bf16; other runs on hopper GPUs are"
            in said(make_problem("llama-3-70b", h100(8)), "megatron-lm")[2]
        )

    @pytest.mark.parametrize(
        ("nodes", "basis", "words"),
        [
            (32, "calibrated", None),
            (33, "calibrated", "the largest of these runs had 256 GPUs; 264 are beyond it"),
            (FAR * 32, "calibrated", "the largest of these runs had 256 GPUs; 1,024 are beyond it"),
            (FAR * 32 + 1, "extrapolated", "1,032 GPUs are more than 4 times the 256 of the largest measured run"),
        ],
    )
    def test_scale(self, nodes: int, basis: str, words: str | None) -> None:
        time, _, notes = said(make_problem("llama-3-8b", h100(nodes)), "fsdp2")
        assert time == basis
        assert "beyond" not in notes if words is None else words in notes


class TestNotes:
    def test_runs_are_counted_by_kind_precision_and_scale(self) -> None:
        notes = said(make_problem("llama-3-8b", h100(8)), "fsdp2", zero_stage=3)[2].splitlines()
        assert notes[0] == (
            "Step time: 11 public measured runs of fsdp2 on the silicon of h100-sxm5-80gb (gh100) stand behind it: "
            "11 dense; 7 fp8, 4 bf16; 8 to 256 GPUs."
        )
        assert notes[1].startswith("Memory: formulas, checked against 15 public measured runs of fsdp2 on hopper GPUs")

    def test_deepspeed_says_how_old_its_runs_are_and_what_its_memory_rests_on(self) -> None:
        notes = said(make_problem("llama-3-8b", h100(8)), "deepspeed", zero_stage=3)[2]
        assert "every public measured run of deepspeed is from 2020 and 2021" in notes
        assert "validated against PyTorch under a fake process group" in notes

    def test_lora_under_fsdp1_says_whose_wrapping_its_memory_is_of(self) -> None:
        def notes(framework: str, tuning: FineTuning | None) -> str:
            problem = make_problem("llama-2-7b", cluster("rtx-3090-24gb"), global_batch_size=64, fine_tuning=tuning)
            return said(problem, framework, zero_stage=3)[2]

        lora, qlora = FineTuning("lora", 8), FineTuning("qlora", 8)
        assert "PEFT" in notes("fsdp1", lora)
        assert all("PEFT" not in notes(*other) for other in (("fsdp1", qlora), ("fsdp1", None), ("fsdp2", lora)))

    def test_a_silicon_without_any_run_says_that_its_efficiencies_are_not_measured(self) -> None:
        notes = said(make_problem("llama-3-8b", cluster("gaudi2-96gb")), "megatron-lm")[2]
        assert "the efficiencies of gaudi2 GPUs are taken from others or assumed" in notes
        notes = said(make_problem("llama-3-8b", cluster("a100-sxm4-80gb")), "ddp")[2]
        assert "runs of other frameworks on this silicon gave" in notes


@pytest.mark.parametrize(
    ("problem", "framework"),
    [
        (make_problem("llama-3-8b", h100(1)), "fsdp2"),
        (make_problem("bert-large", h100(1), sequence_length=512), "megatron-lm"),
        (make_problem("mixtral-8x7b", h100(2)), "fsdp2"),
        (make_problem("llama-3-8b", cluster("mi300x-192gb")), "megatron-lm"),
    ],
    ids=["measured", "encoder", "moe", "unmeasured GPU"],
)
def test_the_warning_is_there_exactly_where_provenance_says_extrapolated(problem: Problem, framework: str) -> None:
    table = resolved(problem, *({"framework": framework, "tensor_parallel_size": size} for size in (1, 2)))
    for result in full_answers(estimate(problem, table, memory_confidence=0.9)):
        warned = any(warning["code"] == "extrapolated" for warning in result["warnings"])
        assert warned is (result["provenance"]["time"] == "extrapolated")
