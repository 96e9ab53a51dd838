"""Schedules, properties and accounting of the step time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalog.hardware import gpu_names
from cost_models.cluster import Cluster
from cost_models.cluster_input import resolve_cluster
from cost_models.problem import Problem
from cost_models.results import TIME_PARTS, TimeEstimate
from cost_models.rules import violations
from cost_models.stages import all_stages, bounding_stages
from cost_models.strategy import StrategyTable
from cost_models.time import estimate_time
from cost_models.time.coefficients import default_coefficients
from tests.cost_models.problems import a100, h100, make_problem, megatron, resolved

DEGREES = st.sampled_from([1, 2, 4, 8])


def timed(problem: Problem, *strategies: dict[str, Any]) -> TimeEstimate:
    table = resolved(problem, *strategies)
    assert not violations(problem, table).any()
    return estimate_time(problem, table, all_stages(problem.model, table))


@cache
def llama(nodes: int = 2, **workload: Any) -> Problem:
    return make_problem("llama-3-8b", h100(nodes), **workload)


def with_cluster(problem: Problem, **changes: Any) -> Problem:
    return replace(problem, cluster=replace(problem.cluster, **changes))


def faster_gpu(cluster: Cluster, *, peak: float = 1.0, memory: float = 1.0) -> Cluster:
    gpu = replace(
        cluster.gpu,
        peak_flops_per_s={name: value * peak for name, value in cluster.gpu.peak_flops_per_s.items()},
        memory_bytes_per_s=cluster.gpu.memory_bytes_per_s * memory,
    )
    return replace(cluster, gpu=gpu)


class TestPipeline:
    """arXiv 2104.04473 sections 2.2.1 and 2.2.2, on a model whose stages are alike but for the two ends."""

    @staticmethod
    def bubble_per_stage(**fields: Any) -> tuple[float, TimeEstimate]:
        """Bubble over the busy time of the slowest stage's micro-batch, and the estimate."""
        problem = make_problem("gpt-3-175b", a100(8), sequence_length=2048, global_batch_size=64)
        estimate = timed(problem, megatron(8, 8, zero_stage=0, **fields))
        busy = sum(float(estimate.parts[name][0]) for name in ("forward", "backward", "recompute", "tensor_parallel"))
        return float(estimate.parts["pipeline_bubble"][0]) / (busy / 64), estimate

    def test_equal_stages_wait_for_all_others_but_one(self) -> None:
        waits, _ = self.bubble_per_stage()
        # Seven other stages; none is slower than the slowest, and the head makes the last one a little slower.
        assert 6.0 < waits <= 7.0

    def test_chunks_divide_the_bubble(self) -> None:
        plain, _ = self.bubble_per_stage()
        chunks, _ = self.bubble_per_stage(virtual_pipeline_size=3)
        assert chunks == pytest.approx(plain / 3, rel=1e-9)

    def test_zero_bubble_fills_it_with_weight_gradients(self) -> None:
        plain, _ = self.bubble_per_stage()
        filled, _ = self.bubble_per_stage(pipeline_schedule="zero-bubble")
        assert 0.2 * plain < filled < 0.5 * plain  # a third where F = B = W (arXiv 2401.10241 table 2)

    def test_without_a_pipeline_there_is_neither_bubble_nor_transfer(self) -> None:
        estimate = timed(llama(), megatron(2, 1))
        assert estimate.parts["pipeline_bubble"][0] == 0
        assert estimate.parts["pipeline_communication"][0] == 0

    def test_uneven_stages_are_as_slow_as_the_slowest(self) -> None:
        even, uneven = (
            timed(llama(), megatron(1, 4, layers_per_stage=layers)).step_seconds[0]
            for layers in ([8, 8, 8, 8], [14, 6, 6, 6])
        )
        assert uneven > 1.25 * even

    def test_bounding_stages_stand_for_all_where_the_middle_is_alike(self) -> None:
        problem = llama()
        table = resolved(problem, megatron(1, 8), megatron(2, 4), megatron(1, 2), megatron(2, 1))
        every = estimate_time(problem, table, all_stages(problem.model, table))
        few = estimate_time(problem, table, bounding_stages(problem.model, table))
        for name in TIME_PARTS:
            np.testing.assert_allclose(few.parts[name], every.parts[name], rtol=1e-12)
        np.testing.assert_allclose(few.hardware_flops, every.hardware_flops, rtol=1e-12)


class TestTraffic:
    def test_recomputation_repeats_tensor_parallel_traffic(self) -> None:
        none, full = (
            timed(llama(), megatron(8, 1, activation_checkpointing=kind, overlap_communication=False))
            for kind in ("none", "full")
        )
        # Two collectives forward and three backward around each half of a layer, where nothing hides the input's second
        # gather; both again forward.
        assert full.parts["tensor_parallel"][0] / none.parts["tensor_parallel"][0] == pytest.approx(7 / 5, rel=0.03)

    def test_overlap_hides_data_parallel_traffic(self) -> None:
        shown, hidden = (
            timed(llama(), {"framework": "fsdp2", "overlap_communication": flag}) for flag in (False, True)
        )
        assert hidden.parts["data_parallel"][0] < shown.parts["data_parallel"][0] / 3

    def test_fsdp_gathers_for_every_micro_batch(self) -> None:
        once, often = (
            timed(llama(), {"framework": "fsdp2", "micro_batch_size": size, "overlap_communication": False})
            for size in (8, 1)
        )
        ratio = often.parts["data_parallel"][0] / once.parts["data_parallel"][0]
        assert ratio == pytest.approx(8, rel=1e-6)

    def test_a_second_copy_inside_the_node_spares_the_slow_fabric_one_of_three_passes(self) -> None:
        problem = llama(8)
        fabric = replace(problem.cluster.inter_node, bytes_per_s=problem.cluster.inter_node.bytes_per_s / 100)
        strategy = {"framework": "deepspeed", "zero_stage": 3, "overlap_communication": False}
        plain, copied = (
            timed(with_cluster(problem, inter_node=fabric), strategy | {"secondary_shard_size": size})
            for size in (1, 8)
        )
        # 16-bit weights forward, weights backward, 16-bit gradients (arXiv 2306.10209 section 3.2)
        assert copied.parts["data_parallel"][0] == pytest.approx(2 / 3 * plain.parts["data_parallel"][0], rel=0.02)

    def test_imbalanced_experts_slow_dispatch_and_products(self) -> None:
        balanced, skewed = (
            timed(
                make_problem("mixtral-8x7b", h100(8), expert_imbalance=factor),
                megatron(1, 1, expert_parallel_size=8),
            )
            for factor in (1.0, 2.0)
        )
        assert skewed.parts["expert_parallel"][0] > 1.5 * balanced.parts["expert_parallel"][0]
        assert skewed.parts["forward"][0] > balanced.parts["forward"][0]

    def test_offloaded_optimizer_runs_on_the_host(self) -> None:
        kept, moved = (
            timed(llama(), {"framework": "deepspeed", "zero_stage": 2, "offload": kind})
            for kind in ("none", "optimizer")
        )
        assert kept.parts["offload"][0] == 0
        assert moved.parts["offload"][0] > kept.parts["optimizer"][0] - moved.parts["optimizer"][0] > 0

    @pytest.mark.parametrize(("stored", "element_bytes"), [("fp32", 4), ("bf16", 2)])
    def test_offloaded_shards_cross_in_the_dtype_that_they_are_stored_in(self, stored: str, element_bytes: int) -> None:
        """Twice in every micro-batch, over 1 GB/s a GPU, less what the passes hide."""
        fields = {"framework": "fsdp2", "zero_stage": 3, "parameter_dtype": stored, "micro_batch_size": 1}
        estimates = []
        for batch in (8, 16):
            problem = llama(1, sequence_length=128, global_batch_size=batch)
            assert problem.cluster.host is not None
            slow = with_cluster(problem, host=replace(problem.cluster.host, pcie_bytes_per_s=1e9, pcie_shared_by=1))
            estimates.append(timed(slow, fields | {"offload": "optimizer-and-parameters"}))
        once, twice = (estimate.parts for estimate in estimates)
        hidden = sum(twice[part][0] - once[part][0] for part in ("forward", "backward"))
        reads = 2 * element_bytes * problem.model.parameters / 8 / 1e9
        assert twice["offload"][0] - once["offload"][0] == pytest.approx(reads - hidden, rel=1e-4)


class TestLaunches:
    def test_graphs_help_where_the_cpu_is_slower_than_the_gpu(self) -> None:
        problem = make_problem("gpt-2-xl", h100(1), sequence_length=1024, global_batch_size=64)
        issued, replayed = (timed(problem, megatron(1, 1, cuda_graphs=flag)).step_seconds[0] for flag in (False, True))
        assert replayed < 0.9 * issued

    def test_and_not_where_products_are_large(self) -> None:
        problem = make_problem("llama-3-70b", h100(2), sequence_length=8192, global_batch_size=64)
        issued, replayed = (timed(problem, megatron(4, 4, cuda_graphs=flag)).step_seconds[0] for flag in (False, True))
        assert replayed == pytest.approx(issued, rel=0.01)

    def test_small_experts_wait_for_the_host(self) -> None:
        """Single sequences leave a B200 idle."""
        problem = make_problem(
            "qwen3-30b-a3b", {"nodes": 1, "gpus_per_node": 8, "gpu": "b200-sxm-180gb"}, precision="fp8"
        )
        one, four = (
            timed(problem, megatron(1, 1, expert_parallel_size=8, micro_batch_size=size)).step_seconds[0]
            for size in (1, 4)
        )
        assert one > 2 * four


def test_autocast_casts_every_weight_that_is_not_stored_in_16_bit() -> None:
    problem = llama(nodes=1)
    ddp = {"framework": "ddp", "micro_batch_size": 1, "compile": True}
    wide, narrow = timed(problem, ddp, ddp | {"parameter_dtype": "bf16"}).parts["forward"]
    gpu, kernels = problem.cluster.gpu, default_coefficients().kernels
    block, tokens = problem.model.blocks[0], problem.workload.sequence_length
    matrices = sum(linear.parameters for linear in block.linears)
    # 6 bytes a weight, and 4 more where each of two residual sums is written in fp32.
    moved = problem.model.layers * (6 * matrices + 2 * 4 * tokens * problem.model.hidden_size)
    batches = problem.workload.global_batch_size / problem.cluster.gpus
    expected = batches * moved / (gpu.memory_bytes_per_s * kernels.memory_efficiency)
    assert wide - narrow == pytest.approx(expected, rel=1e-6)


def mixed_table(problem: Problem) -> StrategyTable:
    """Strategies of all frameworks, as different as the rules allow."""
    strategies = [
        megatron(tensor, pipeline, micro_batch_size=size, activation_checkpointing=kind)
        for tensor in (1, 2, 4, 8)
        for pipeline in (1, 2, 4)
        for size in (1, 2)
        for kind in ("none", "selective", "full")
    ]
    strategies += [
        {"framework": name, "zero_stage": stage, "micro_batch_size": size}
        for name, stages in {"deepspeed": (0, 1, 2, 3), "fsdp2": (0, 2, 3), "fsdp1": (2, 3), "ddp": (0,)}.items()
        for stage in stages
        for size in (1, 4)
    ]
    strategies += [
        megatron(2, 1, context_parallel_size=4, context_parallel_kind=kind) for kind in ("ring", "all-to-all")
    ]
    strategies += [{"framework": "nanotron", "tensor_parallel_size": 4, "pipeline_parallel_size": 2}]
    table = resolved(problem, *strategies)
    return table.take(violations(problem, table) == 0)


class TestColumns:
    def test_one_by_one_is_the_same(self) -> None:
        problem = llama()
        table = mixed_table(problem)
        assert len(table) > 80
        whole = estimate_time(problem, table, all_stages(problem.model, table))
        for index in range(len(table)):
            row = table.take(slice(index, index + 1))
            alone = estimate_time(problem, row, all_stages(problem.model, row))
            for name in TIME_PARTS:
                np.testing.assert_allclose(alone.parts[name][0], whole.parts[name][index], rtol=1e-12)

    @pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2", "gemma-2-27b", "gpt-oss-20b"])
    def test_parts_are_finite_and_add_up(self, model: str) -> None:
        problem = make_problem(model, h100(4))
        table = mixed_table(problem)
        estimate = estimate_time(problem, table, all_stages(problem.model, table))
        stacked = np.stack([estimate.parts[name] for name in TIME_PARTS])
        assert np.isfinite(stacked).all()
        assert (stacked >= 0).all()
        np.testing.assert_allclose(stacked.sum(axis=0), estimate.step_seconds, rtol=1e-12)
        assert tuple(estimate.parts) == TIME_PARTS

    @pytest.mark.parametrize(
        ("model", "cluster"),
        [
            ("llama-3-8b", h100(4)),
            ("llama-3-70b", h100(4)),
            ("llama-3.1-405b", h100(4)),
            ("llama-3-8b", a100(4)),
        ],
    )
    def test_no_strategy_beats_65_percent_of_the_peak(self, model: str, cluster: dict[str, Any]) -> None:
        assert utilisation(make_problem(model, cluster, sequence_length=8192)).max() <= 0.65 * (1 + 1e-12)

    @pytest.mark.parametrize("sequence_length", [2048, 131_072])
    @pytest.mark.parametrize("cluster", [h100(4), a100(4)])
    def test_no_step_is_shorter_than_its_products(self, cluster: dict[str, Any], sequence_length: int) -> None:
        """Whatever the length: attention counts as a model's FLOP in full, its masked half costs kernels nothing."""
        problem = make_problem("llama-3-8b", cluster, sequence_length=sequence_length)
        table = mixed_table(problem)
        estimate = estimate_time(problem, table, all_stages(problem.model, table))
        generation = default_coefficients().generation(problem.cluster.gpu.generation)
        attention = 32 * 12 * 4096 * sequence_length * problem.workload.tokens
        products = (estimate.hardware_flops - attention) / generation.gemm
        masked = 0.5 * attention / generation.flash_forward
        seconds = (products + masked) / estimate.peak_flops_per_s / problem.cluster.gpus
        none = table.is_choice("activation_checkpointing", "none")
        assert none.any()
        assert (seconds[none] < estimate.step_seconds[none]).all()


def utilisation(problem: Problem) -> Any:
    """Model FLOP over the dense peak, of many strategies."""
    table = mixed_table(problem)
    estimate = estimate_time(problem, table, all_stages(problem.model, table))
    return estimate.model_flops / estimate.step_seconds / problem.cluster.gpus / estimate.peak_flops_per_s


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_gpu_of_the_catalog_is_priced_within_reason(gpu: str) -> None:
    cluster = {"nodes": 2, "gpus_per_node": 8, "gpu": gpu, "inter_node": {"kind": "ethernet", "gbps_per_gpu": 100}}
    found = resolve_cluster(cluster).gpu
    precision = "bf16" if found.supports("bf16") else "fp16"
    attention = "flash" if found.flash_attention else "eager"
    problem = make_problem("llama-3-8b", cluster, precision=precision, attention=attention)
    shares = utilisation(problem)
    assert len(shares) > 50
    assert (shares > 0).all()
    assert shares.max() <= 0.65 * (1 + 1e-12)


class TestMonotone:
    @settings(deadline=None, max_examples=25)
    @given(tensor=DEGREES, pipeline=DEGREES, size=st.sampled_from([1, 2]), factor=st.floats(1.0, 4.0))
    def test_faster_hardware_is_never_slower(self, tensor: int, pipeline: int, size: int, factor: float) -> None:
        problem = llama(8)
        strategy = megatron(tensor, pipeline, micro_batch_size=size)
        base = timed(problem, strategy).step_seconds[0] * (1 + 1e-12)
        cluster = problem.cluster
        inter = replace(cluster.inter_node, bytes_per_s=cluster.inter_node.bytes_per_s * factor)
        intra = replace(cluster.intra_node, bytes_per_s=cluster.intra_node.bytes_per_s * factor)
        for better in (
            faster_gpu(cluster, peak=factor),
            faster_gpu(cluster, memory=factor),
            replace(cluster, inter_node=inter),
            replace(cluster, intra_node=intra),
        ):
            assert timed(replace(problem, cluster=better), strategy).step_seconds[0] <= base

    @settings(deadline=None, max_examples=15)
    @given(
        tensor=DEGREES, sequences=st.lists(st.sampled_from([1024, 2048, 4096, 8192, 16384]), min_size=2, unique=True)
    )
    def test_longer_sequences_take_longer(self, tensor: int, sequences: list[int]) -> None:
        times = [
            timed(llama(sequence_length=length), megatron(tensor, 1)).step_seconds[0] for length in sorted(sequences)
        ]
        assert (np.diff(times) > 0).all()

    @settings(deadline=None, max_examples=15)
    @given(tensor=DEGREES, batches=st.lists(st.sampled_from([64, 128, 256, 512]), min_size=2, unique=True))
    def test_larger_batches_take_longer(self, tensor: int, batches: list[int]) -> None:
        times = [timed(llama(global_batch_size=size), megatron(tensor, 2)).step_seconds[0] for size in sorted(batches)]
        assert (np.diff(times) > 0).all()
