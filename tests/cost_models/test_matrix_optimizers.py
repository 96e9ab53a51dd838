"""Muon and Adafactor: bytes of their states, FLOP of the orthogonalisation, and what their steps take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.cluster_input import resolve_cluster
from cost_models.explicit_architecture import build_architecture
from cost_models.memory import estimate_memory
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from cost_models.time.device import device_of
from cost_models.time.orthogonal import STEPS, matrix_seconds, step_products
from cost_models.workload import FineTuning, Workload
from tests.cost_models.problems import h100, make_problem, megatron, resolved

GIB = 2**30


def memory(problem: Problem, **strategy: Any) -> MemoryEstimate:
    table = resolved(problem, strategy)
    return estimate_memory(problem, table, all_stages(problem.model, table))


def seconds(problem: Problem, **strategy: Any) -> TimeEstimate:
    table = resolved(problem, strategy)
    return estimate_time(problem, table, all_stages(problem.model, table))


def llama(optimizer: str, **workload: Any) -> Problem:
    return make_problem("llama-3-8b", h100(1), global_batch_size=64, optimizer=optimizer, **workload)


LAYER = (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) * 32
"""Hidden matrices of Llama 3 8B."""
ENDS = 2 * 128256 * 4096


def matrix_flops(rows: int, columns: int) -> float:
    products = step_products(rows, columns)
    return STEPS * float((2 * products.batch * products.m * products.n * products.k).sum())


class TestMuon:
    @pytest.mark.parametrize(("width", "tokens", "published"), [(768, 524288, 0.007), (16384, 16e6, 0.005)])
    def test_costs_the_share_of_the_work_that_its_author_gives(
        self, width: int, tokens: float, published: float
    ) -> None:
        # Keller Jordan, Muon (2024): T m / B for square matrices; NanoGPT's speedrun 0.7 %, Llama 405B 0.5 %.
        assert matrix_flops(width, width) / (6 * width**2 * tokens) == pytest.approx(published, abs=5e-4)

    def test_longer_sides_cost_linearly_and_orientation_nothing(self) -> None:
        assert matrix_flops(512, 2048) == matrix_flops(2048, 512) == 5 * (4 * 512**2 * 2048 + 2 * 512**3)

    def test_keeps_one_moment_of_hidden_matrices_and_two_of_the_rest(self) -> None:
        problem = llama("muon")
        rest = problem.model.parameters - LAYER
        states = memory(problem, framework="fsdp2", zero_stage=3, micro_batch_size=1).parts["optimizer_states"][0]
        peak = (4 * LAYER + 8 * rest) / 8
        assert states == pytest.approx(peak, rel=1e-9)

    def test_spares_half_of_the_moments_of_adapters(self) -> None:
        tuning = FineTuning("lora", 16)
        muon, adam = (
            memory(llama(name, fine_tuning=tuning), framework="fsdp2").parts["optimizer_states"][0]
            for name in ("muon", "adamw")
        )
        assert muon == pytest.approx(adam / 2)

    def test_golden_runs_differ_as_tensors_are_shared_out(self) -> None:
        # Megatron-LM functional tests gpt3_moe_mcore_te_ep8_resume_torch_dist_(dist_)muon on 8 H100: 3.3765 and
        # 3.2841 GiB allocated. The rank that holds the embedding's states holds all of them.
        model = build_architecture(
            {
                "layers": 12,
                "hidden_size": 512,
                "attention_heads": 8,
                "key_value_heads": 8,
                "ffn_hidden_size": 2048,
                "gated_mlp": False,
                "vocab_size": 50257,
                "tied_embeddings": True,
                "position_embeddings": "rotary",
                "experts": 8,
                "experts_per_token": 2,
                "expert_ffn_hidden_size": 1024,
            }
        )
        cluster = resolve_cluster({"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"})
        problem = Problem(model, cluster, Workload(1024, 32, optimizer="muon"))
        strategy = {"framework": "megatron-lm", "micro_batch_size": 4, "expert_parallel_size": 8}
        replicated, shared = (memory(problem, **strategy, zero_stage=stage).peak_allocated_bytes[0] for stage in (0, 1))
        assert (replicated - shared) / GIB == pytest.approx(3.3765 - 3.2841, abs=0.01)

    def test_step_is_the_work_of_all_matrices_spread_over_the_ranks(self) -> None:
        muon, adam = llama("muon"), llama("adamw")
        device = device_of(muon.cluster.gpu, default_coefficients())
        (block,) = muon.model.blocks
        work = 32 * sum(matrix_seconds(linear, device) for linear in block.linears)
        extra = [
            seconds(muon, framework="megatron-lm", zero_stage=stage).parts["optimizer"][0]
            - seconds(adam, framework="megatron-lm", zero_stage=stage).parts["optimizer"][0]
            for stage in (0, 1)
        ]
        moment = 2 * 4 * muon.model.parameters / (3.35e12 * default_coefficients().kernels.memory_efficiency)
        assert extra[0] == pytest.approx(work - moment, rel=0.01)
        # Besides its share of the work a rank gathers 16-bit matrices: 14 GB over NVLink.
        assert work / 8 < extra[1] + moment / 8 < work / 8 + 0.06

    def test_no_rank_has_less_than_one_matrix(self) -> None:
        problem = make_problem("llama-3-8b", h100(64), global_batch_size=512, optimizer="muon")
        (block,) = problem.model.blocks
        device = device_of(problem.cluster.gpu, default_coefficients())
        longest = max(matrix_seconds(linear, device) for linear in block.linears)
        table = resolved(problem, megatron(1, 1))
        found = estimate_time(problem, table, all_stages(problem.model, table)).parts["optimizer"][0]
        assert found > longest


class TestAdafactor:
    def test_keeps_rows_and_columns(self) -> None:
        # arXiv 1804.04235, section 3: n + m sums for an n x m matrix.
        states = memory(llama("adafactor"), framework="ddp").parts["optimizer_states"][0]
        q, kv, ffn = 4096 + 4096, 4096 + 1024, 4096 + 14336
        sums = 32 * (2 * q + 2 * kv + 3 * ffn) + 2 * (128256 + 4096)
        vectors = 65 * 4096
        # The final norm counts as one more row of the head.
        assert states == pytest.approx(4 * (sums + vectors), rel=0.02)
        assert states < 15e6

    @pytest.mark.parametrize(("framework", "stage"), [("deepspeed", 1), ("fsdp1", 3)])
    def test_flat_shards_have_no_rows(self, framework: str, stage: int) -> None:
        problem = llama("adafactor")
        masters = 4 if framework == "deepspeed" else 0
        found = memory(problem, framework=framework, zero_stage=stage, parameter_dtype="bf16").parts
        step = found["optimizer_states"][0] - (4 + masters) * problem.model.parameters / 8
        assert 0 <= step <= 8 * problem.model.parameters / 8 + 1

    def test_offloaded_it_needs_little_of_the_host(self) -> None:
        strategy = {"framework": "fsdp2", "zero_stage": 3, "offload": "optimizer-and-parameters"}
        adam, adafactor = (
            memory(llama(name), **strategy).host_bytes_per_node["steady"][0] for name in ("adamw", "adafactor")
        )
        assert adam - adafactor == pytest.approx(8 * 8.03e9, rel=0.01)

    def test_unfused_step_takes_longer_than_fused_adam(self) -> None:
        adafactor, adam = (
            seconds(llama(name), framework="ddp").parts["optimizer"][0] for name in ("adafactor", "adamw")
        )
        passes = (68 - 16) * 8.03e9 / (3.35e12 * default_coefficients().kernels.memory_efficiency)
        assert adafactor - adam == pytest.approx(passes, rel=0.01)
        assert np.isfinite(adafactor)
