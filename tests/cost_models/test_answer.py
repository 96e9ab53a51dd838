"""An estimate in the words of the contract: units, sums, nulls, and what the warnings say."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.answer import full_answers, summary_answers
from cost_models.estimate import estimate
from cost_models.problem import Problem
from tests.cost_models.problems import h100, make_problem, megatron, resolved

LLAMA = make_problem("llama-3-70b", h100(8), sequence_length=8192, global_batch_size=128, training_tokens=1.0e12)
V100_PAIR = {"nodes": 1, "gpus_per_node": 2, "gpu": "v100-sxm2-16gb"}


def answer(problem: Problem, strategy: dict[str, Any], confidence: float = 0.9) -> dict[str, Any]:
    [result] = full_answers(estimate(problem, resolved(problem, strategy), memory_confidence=confidence))
    return result


def codes(result: dict[str, Any]) -> dict[str, str]:
    return {warning["code"]: warning["message"] for warning in result["warnings"]}


class TestFullAnswers:
    def test_rows_stand_in_the_order_asked_and_invalid_ones_have_null_figures(self) -> None:
        table = resolved(LLAMA, megatron(3, 1), megatron(4, 4, virtual_pipeline_size=5), megatron(8, 2))
        first, second, third = full_answers(estimate(LLAMA, table, memory_confidence=0.9))
        assert [first["valid"], second["valid"], third["valid"]] == [False, True, True]
        assert {code["code"] for code in first["violations"]} >= {
            "degrees_do_not_multiply_to_gpus",
            "heads_not_divisible",
        }
        figures = ("fits", "memory", "time", "throughput", "cost", "provenance")
        assert [first[name] for name in figures] == [None] * len(figures)
        assert second["strategy"]["virtual_pipeline_size"] == 5
        assert third["strategy"]["tensor_parallel_size"] == 8

    def test_a_summary_says_the_same_as_the_full_answer(self) -> None:
        estimates = estimate(
            LLAMA, resolved(LLAMA, megatron(3, 1), megatron(4, 4), megatron(8, 1)), memory_confidence=0.9
        )
        for short, full in zip(summary_answers(estimates), full_answers(estimates), strict=True):
            assert short == {
                "valid": full["valid"],
                "fits": full["fits"],
                "step_seconds": full["time"] and full["time"]["step_seconds"],
                "peak_gib": full["memory"] and full["memory"]["peak_gib"],
                "violations": [broken["code"] for broken in full["violations"]],
            }

    def test_parts_add_up_and_the_top_figures_are_those_of_the_fullest_stage(self) -> None:
        result = answer(LLAMA, megatron(4, 4, virtual_pipeline_size=5))
        memory, time = result["memory"], result["time"]
        assert sum(memory["breakdown_gib"].values()) == pytest.approx(memory["peak_gib"], abs=1e-4)
        assert sum(time["breakdown_seconds"].values()) == pytest.approx(time["step_seconds"], abs=1e-4)
        assert [stage["stage"] for stage in memory["stages"]] == [0, 1, 2, 3]
        assert sum(stage["layers"] for stage in memory["stages"]) == 80
        fullest = max(memory["stages"], key=lambda stage: stage["peak_gib"])
        assert memory["peak_gib"] == fullest["peak_gib"]
        assert memory["breakdown_gib"] == fullest["breakdown_gib"]

    def test_throughput_and_cost_follow_from_the_step(self) -> None:
        result = answer(LLAMA, megatron(4, 4))
        step, tokens = result["time"]["step_seconds"], 8192 * 128
        assert result["throughput"]["tokens_per_second"] == pytest.approx(tokens / step)
        assert result["throughput"]["tokens_per_second_per_gpu"] == pytest.approx(tokens / step / 64)
        days = 1.0e12 / tokens * step / 86_400
        assert result["cost"]["days"] == pytest.approx(days)
        assert result["cost"]["gpu_hours"] == pytest.approx(days * 24 * 64)
        assert result["cost"]["energy_kwh"] == pytest.approx(days * 24 * 64 * 0.7)  # 700 W a GPU
        assert result["cost"]["usd"] is None  # a DGX has no list price

    def test_without_training_tokens_there_is_no_cost(self) -> None:
        result = answer(make_problem("llama-3-70b", h100(8)), megatron(4, 4))
        assert result["cost"] == {"days": None, "gpu_hours": None, "usd": None, "energy_kwh": None}


class TestProvenance:
    def test_measured_runs_behind_the_gpu_and_framework_are_named(self) -> None:
        assert answer(LLAMA, megatron(4, 4))["provenance"]["time"] == "calibrated"
        assert answer(LLAMA, {"framework": "deepspeed", "zero_stage": 3})["provenance"]["time"] == "analytical"

    def test_a_framework_known_from_old_runs_only_says_so(self) -> None:
        notes = answer(LLAMA, {"framework": "deepspeed", "zero_stage": 3})["provenance"]["notes"]
        assert any("2020 and 2021" in note for note in notes)
        assert not any("2020" in note for note in answer(LLAMA, megatron(4, 4))["provenance"]["notes"])

    @pytest.mark.parametrize(
        ("strategy", "expected"),
        [
            ({"framework": "fsdp2", "zero_stage": 3}, False),
            ({"framework": "megatron-lm", "zero_stage": 1, "tensor_parallel_size": 8}, False),
            ({"framework": "megatron-lm", "zero_stage": 3, "tensor_parallel_size": 8}, True),
        ],
    )
    def test_sharded_weights_without_a_run_behind_them_are_said(self, strategy: dict[str, Any], expected: bool) -> None:
        result = answer(LLAMA, strategy)["provenance"]
        assert result["time"] == "calibrated"
        assert any("none of these runs used zero_stage 3" in note for note in result["notes"]) is expected

    def test_an_unknown_gpu_is_extrapolated_and_says_so(self) -> None:
        gpu = {
            "name": "accelerator-x",
            "memory_gib": 96.0,
            "memory_gb_per_s": 3000.0,
            "peak_tflops": {"bf16": 800.0, "fp32": 50.0},
            "tdp_watts": 600.0,
        }
        cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": gpu, "intra_node": {"kind": "nvlink", "gb_per_s": 400.0}}
        result = answer(make_problem("llama-3-8b", cluster), megatron(1, 1))
        assert result["provenance"]["time"] == result["provenance"]["memory"] == "extrapolated"
        assert "accelerator-x" in codes(result)["extrapolated"]


class TestCostWarnings:
    def test_logits_of_a_large_vocabulary_dominate_a_small_model(self) -> None:
        problem = make_problem("llama-3-8b", h100(1), sequence_length=32_768, global_batch_size=8)
        result = answer(problem, {"framework": "fsdp2", "activation_checkpointing": "full"})
        assert "logits and loss take" in codes(result)["logits_dominate"]

    def test_offload_on_an_unknown_host_does_not_fit_and_says_why(self) -> None:
        problem = make_problem("gpt-2-xl", V100_PAIR, precision="fp16", attention="eager", sequence_length=1024)
        offloaded = {"framework": "deepspeed", "zero_stage": 2, "offload": "optimizer"}
        result = answer(problem, offloaded)
        assert result["fits"] is False
        assert "host_unknown" in codes(result)
        assert answer(problem, {**offloaded, "offload": "none"})["warnings"] != result["warnings"]

    def test_a_short_host_is_named_with_both_figures(self) -> None:
        cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "host": {"memory_gib": 64.0}}
        problem = make_problem("llama-3-8b", cluster)
        result = answer(problem, {"framework": "deepspeed", "zero_stage": 3, "offload": "optimizer"})
        assert result["fits"] is False
        assert codes(result)["host_memory_short"].startswith("a node has 64 GiB of host memory and needs ")

    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
    def test_what_fits_is_within_the_risk_taken(self, confidence: float) -> None:
        for strategy in (megatron(4, 4), megatron(2, 4), megatron(8, 2), megatron(8, 1), megatron(1, 8)):
            result = answer(LLAMA, strategy, confidence)
            assert result["fits"] == (result["memory"]["oom_probability"] <= 1 - confidence)
            if result["fits"] and result["memory"]["oom_probability"] >= 0.01:
                assert "near_memory_limit" in codes(result)
