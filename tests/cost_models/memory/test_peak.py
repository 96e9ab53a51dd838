"""Peaks: published runs, parts that add up, and what must grow or fall with each choice."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.explicit_architecture import build_architecture
from cost_models.memory import estimate_memory, fit, memory_needs
from cost_models.memory.states import sharding
from cost_models.problem import Problem
from cost_models.results import MEMORY_PARTS, PEAK_MOMENTS, MemoryEstimate
from cost_models.stages import all_stages
from cost_models.workload import FineTuning, Workload
from tests.cost_models.problems import h100, make_problem, megatron, resolved

DATA = Path(__file__).parents[2] / "data"
GIB = 2**30
# Large enough a batch that no strategy below runs a single micro-batch, which would hold no gradients at its peak.
LLAMA = make_problem("llama-3-8b", h100(2), global_batch_size=256)
MIXTRAL = make_problem("mixtral-8x7b", h100(2), global_batch_size=256)

CHECKPOINTING = ("none", "selective", "full")
STRATEGIES = st.fixed_dictionaries(
    {
        "framework": st.sampled_from(["megatron-lm", "fsdp2"]),
        "tensor_parallel_size": st.sampled_from([1, 2, 4]),
        "pipeline_parallel_size": st.sampled_from([1, 2, 4]),
        "micro_batch_size": st.sampled_from([1, 2, 4]),
        "activation_checkpointing": st.sampled_from(CHECKPOINTING),
        "kernels": st.sampled_from(["fused", "partly-fused", "eager"]),
        "zero_stage": st.sampled_from([0, 2, 3]),
        "context_parallel_size": st.sampled_from([1, 2]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "compile": st.booleans(),
        "expandable_segments": st.booleans(),
    }
)


def estimated(problem: Problem, *strategies: dict[str, Any]) -> MemoryEstimate:
    table = resolved(problem, *strategies)
    return estimate_memory(problem, table, all_stages(problem.model, table))


def peaks(problem: Problem, *strategies: dict[str, Any]) -> list[float]:
    """Allocated bytes of the fullest stage of each strategy."""
    found = estimated(problem, *strategies)
    return found.peak_allocated_bytes[found.fullest].tolist()


def published() -> list[dict[str, str]]:
    lines = (DATA / "memory_published_runs.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("run", published(), ids=lambda run: f"{run['name']}-{run['gib']}")
def test_published_runs_are_met(run: dict[str, str]) -> None:
    workload = json.loads(run["workload"])
    if tuning := workload.pop("fine_tuning", None):
        workload["fine_tuning"] = FineTuning(**{**tuning, "modules_to_save": tuple(tuning.get("modules_to_save", ()))})
    cluster = {"nodes": int(run["nodes"]), "gpus_per_node": int(run["gpus_per_node"]), "gpu": run["gpu"]}
    model = build_architecture(json.loads(run["architecture"]), sequence_length=workload["sequence_length"])
    problem = Problem(model, make_problem("gpt-2-xl", cluster).cluster, Workload(**workload))
    found = estimated(problem, json.loads(run["strategy"]))
    stage = int(run["stage"]) if run["stage"] else int(found.fullest[0])
    column = {
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "device": found.peak_bytes,
    }[run["statistic"]]
    assert column[stage] / GIB == pytest.approx(float(run["gib"]), rel=float(run["tolerance"]))


@given(st.lists(STRATEGIES, min_size=1, max_size=6), st.sampled_from([LLAMA, MIXTRAL]))
@settings(max_examples=60)
def test_parts_add_up_and_a_table_is_its_rows(strategies: list[dict[str, Any]], problem: Problem) -> None:
    found = estimated(problem, *strategies)
    assert set(found.parts) == set(MEMORY_PARTS)
    for part in found.parts.values():
        assert np.isfinite(part).all()
        assert (part >= 0).all()
    np.testing.assert_allclose(np.sum(list(found.parts.values()), axis=0), found.peak_bytes, rtol=1e-12)
    assert (found.peak_allocated_bytes <= found.peak_reserved_bytes).all()
    assert (found.peak_reserved_bytes <= found.peak_bytes).all()
    assert (found.required_bytes <= found.peak_bytes * (1 + 1e-12)).all()
    assert (found.peak_moment < len(PEAK_MOMENTS)).all()
    for index, strategy in enumerate(strategies):
        alone = estimated(problem, strategy)
        mine = found.stages.row == index
        np.testing.assert_allclose(found.peak_bytes[mine], alone.peak_bytes, rtol=1e-12)
        fullest = found.fullest[index]
        assert found.stages.row[fullest] == index
        assert found.peak_bytes[fullest] == found.peak_bytes[mine].max()
        assert found.most_required_bytes[index] == found.required_bytes[mine].max()


@given(STRATEGIES, st.sampled_from([LLAMA, MIXTRAL]))
@settings(max_examples=60)
def test_more_tokens_need_more_memory(strategy: dict[str, Any], problem: Problem) -> None:
    longer = Problem(problem.model, problem.cluster, Workload(8192, problem.workload.global_batch_size))
    once, twice = peaks(problem, strategy, {**strategy, "micro_batch_size": 2 * strategy["micro_batch_size"]})
    assert once <= twice
    assert once <= peaks(longer, strategy)[0]


@given(STRATEGIES, st.sampled_from([LLAMA, MIXTRAL]))
@settings(max_examples=60)
def test_recomputing_more_needs_less_memory(strategy: dict[str, Any], problem: Problem) -> None:
    none, selective, full = peaks(problem, *({**strategy, "activation_checkpointing": mode} for mode in CHECKPOINTING))
    assert none * (1 + 1e-12) >= selective
    assert selective * (1 + 1e-12) >= full


@pytest.mark.parametrize(
    ("framework", "zero_stages"), [("megatron-lm", (0, 1)), ("deepspeed", (1, 2, 3)), ("fsdp2", (0, 2, 3))]
)
def test_sharding_more_needs_less_memory(framework: str, zero_stages: tuple[int, ...]) -> None:
    problem = make_problem("llama-3-70b", h100(8))
    fields = {"framework": framework, "activation_checkpointing": "full"}
    found = peaks(problem, *({**fields, "zero_stage": stage} for stage in zero_stages))
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "nanotron"])
def test_tensor_parallelism_needs_less_memory(framework: str) -> None:
    problem = make_problem("llama-3-70b", h100(8))
    sizes = (1, 2, 4, 8)
    found = peaks(problem, *({"framework": framework, "tensor_parallel_size": size} for size in sizes))
    assert found == sorted(found, reverse=True)


def test_checkpointing_some_layers_lies_between_none_and_all() -> None:
    fields = {"framework": "megatron-lm", "activation_checkpointing": "full"}
    some = [{**fields, "checkpointed_layers": layers} for layers in (8, 16, 32)]
    none, *found = peaks(LLAMA, {"framework": "megatron-lm"}, *some)
    assert [none, *found] == sorted([none, *found], reverse=True)


def test_the_loss_of_a_large_vocabulary_is_the_peak_of_the_last_stage() -> None:
    found = estimated(
        LLAMA, {"framework": "megatron-lm", "pipeline_parallel_size": 4, "activation_checkpointing": "full"}
    )
    assert PEAK_MOMENTS[found.peak_moment[-1]] == "loss"
    # One copy in bf16 and one in fp32, worked on in place.
    assert found.parts["logits"][-1] == 4096 * 128256 * 6
    assert found.parts["logits"][0] == 0


def test_fused_and_compiled_losses_keep_less() -> None:
    fused = make_problem("llama-3-8b", h100(2), global_batch_size=256, fused_loss=True)
    fields = {"framework": "fsdp2", "activation_checkpointing": "full", "micro_batch_size": 4}
    plain, compiled = estimated(LLAMA, fields), estimated(LLAMA, {**fields, "compile": True})
    chunked = estimated(fused, fields)
    logits = 4 * 4096 * 128256
    assert plain.parts["logits"][0] == 12 * logits
    assert compiled.peak_allocated_bytes[0] < plain.peak_allocated_bytes[0]
    assert chunked.peak_allocated_bytes[0] < plain.peak_allocated_bytes[0]


def test_one_micro_batch_has_no_gradients_where_they_come_with_backward() -> None:
    fields = {"framework": "fsdp2", "micro_batch_size": 8, "activation_checkpointing": "full"}
    one, two = estimated(make_problem("llama-3-8b", h100(2), global_batch_size=128), fields), estimated(LLAMA, fields)
    assert PEAK_MOMENTS[one.peak_moment[0]] == PEAK_MOMENTS[two.peak_moment[0]] == "loss"
    assert one.parts["gradients"][0] == 0
    assert two.parts["gradients"][0] == pytest.approx(4 * LLAMA.model.parameters / 16)


def test_experts_that_are_not_cut_spread_unevenly() -> None:
    problem = make_problem("qwen3-30b-a3b", {"nodes": 3, "gpus_per_node": 16, "gpu": "h100-sxm5-80gb"})
    table = resolved(problem, {"framework": "fsdp2"}, {"framework": "megatron-lm", "zero_stage": 3})
    found = sharding(problem, table)
    # 128 experts over 48 ranks: the fullest holds 3.
    assert found.expert_ranks.tolist() == pytest.approx([128 / 3, 48])


def test_fp8_copies_of_weights_are_kept_beside_bf16_ones() -> None:
    problem = make_problem("llama-3-8b", h100(1))
    bf16, fp8 = (estimated(problem, megatron(1, 1, precision=precision)) for precision in ("bf16", "fp8"))
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    norms = 32 * 2 * 4096
    assert fp8.parts["parameters"][0] - bf16.parts["parameters"][0] == 2 * (matrices + norms)


@pytest.mark.parametrize(
    ("gpu", "recipe", "stored", "bytes_per_weight"),
    [
        ("h100-sxm5-80gb", "tensorwise", "bf16", 4),
        ("b200-sxm-180gb", "tensorwise", "bf16", 3),
        ("b200-sxm-180gb", "mxfp8", "bf16", 4),
        ("h100-sxm5-80gb", "tensorwise", "fp8", 2),
        ("b200-sxm-180gb", "tensorwise", "fp8", 1),
    ],
)
def test_blackwell_needs_no_transposed_copy_of_weights_with_one_scale(
    gpu: str, recipe: str, stored: str, bytes_per_weight: int
) -> None:
    problem = make_problem("llama-3-8b", {"nodes": 1, "gpus_per_node": 8, "gpu": gpu})
    fields = {"precision": "fp8", "fp8_recipe": recipe, "parameter_dtype": stored, "micro_batch_size": 4}
    found = estimated(problem, megatron(1, 1, **fields))
    blocks = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    outside = problem.model.parameters - blocks
    assert found.parts["parameters"][0] == bytes_per_weight * blocks + 2 * outside


@settings(deadline=None, max_examples=20)
@given(st.lists(STRATEGIES, min_size=1, max_size=6), st.integers(1, 3))
def test_needs_are_those_of_the_estimate(strategies: list[dict[str, Any]], block: int) -> None:
    table = resolved(MIXTRAL, *strategies)
    stages = all_stages(MIXTRAL.model, table)
    found = estimate_memory(MIXTRAL, table, stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cost_models.memory.estimate.BLOCK_STRATEGIES", block)
        needs = memory_needs(MIXTRAL, table, stages)
    np.testing.assert_array_equal(needs.peak_bytes, found.peak_bytes[found.fullest])
    np.testing.assert_array_equal(needs.most_required_bytes, found.most_required_bytes)
    np.testing.assert_array_equal(needs.device_load_peak_bytes, found.device_load_peak_bytes)
    np.testing.assert_array_equal(needs.nvme_bytes_per_node, found.nvme_bytes_per_node)
    for name, column in found.host_bytes_per_node.items():
        np.testing.assert_array_equal(needs.host_bytes_per_node[name], column)


class TestFit:
    def test_at_even_odds_the_bound_is_the_figure_itself(self) -> None:
        found = estimated(LLAMA, {"framework": "fsdp2"})
        judged = fit(LLAMA, found, 0.5)
        assert judged.required_upper_bytes[0] == found.required_bytes[found.fullest[0]]

    def test_the_stage_that_needs_most_decides_even_where_another_shows_the_highest_peak(self) -> None:
        # The optimizer's temporaries on the first stage leave cached blocks, which raise its peak, not its need.
        problem = make_problem("gpt-2-xl", h100(2), global_batch_size=64)
        fields = {"framework": "deepspeed", "pipeline_parallel_size": 4, "kernels": "fused"}
        found = estimated(problem, {**fields, "activation_checkpointing": "full"})
        neediest = int(found.required_bytes.argmax())
        assert found.fullest[0] == 0 != neediest
        assert fit(problem, found, 0.5).required_upper_bytes[0] == found.required_bytes[neediest]

    def test_probability_bound_and_verdict_agree(self) -> None:
        strategies = [{"framework": "fsdp2", "micro_batch_size": size} for size in (1, 2, 4)]
        strategies += [{"framework": "ddp"}, {"framework": "megatron-lm", "tensor_parallel_size": 8}]
        found = estimated(LLAMA, *strategies)
        capacity = LLAMA.cluster.capacity_bytes
        for confidence in (0.5, 0.8, 0.95):
            judged = fit(LLAMA, found, confidence)
            np.testing.assert_array_equal(judged.required_upper_bytes <= capacity, judged.fits)
            np.testing.assert_array_equal(judged.oom_probability <= 1 - confidence + 1e-6, judged.fits)
        assert not judged.fits[3]
        assert judged.fits[4]

    def test_the_margin_is_that_of_the_framework(self) -> None:
        found = estimated(LLAMA, {"framework": "megatron-lm"}, {"framework": "fsdp2"})
        judged = fit(LLAMA, found, 0.9)
        margins = np.log(judged.required_upper_bytes / judged.required_bytes)
        # 1.2816 standard deviations
        assert margins.tolist() == pytest.approx([0.05 * 1.2815516, 0.12 * 1.2815516])

    def test_offload_needs_a_host_that_is_known_and_large_enough(self) -> None:
        fields = {"framework": "deepspeed", "zero_stage": 2, "offload": "optimizer", "activation_checkpointing": "full"}
        known = make_problem("llama-3-8b", h100(1), global_batch_size=64)
        unknown = make_problem(
            "llama-3-8b", {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}, global_batch_size=64
        )
        found = estimated(known, fields)
        # fp32 masters, moments and gradients, and a 16-bit staging copy, over all ranks of the only node
        assert found.host_bytes_per_node["steady"][0] == pytest.approx(18 * known.model.parameters)
        assert fit(known, found, 0.9).fits[0]
        assert not fit(unknown, estimated(unknown, fields), 0.9).fits[0]

    def test_nvme_holds_what_is_offloaded_to_it(self) -> None:
        fields = {"framework": "deepspeed", "zero_stage": 3, "offload": "nvme"}
        found = estimated(LLAMA, fields)
        # masters, moments, gradients and the 16-bit weights, on two nodes
        assert found.nvme_bytes_per_node[0] == pytest.approx(18 * LLAMA.model.parameters / 2)
        assert found.parts["optimizer_states"][0] == 0

    def test_a_checkpoint_is_staged_once_and_only_from_the_gpus(self) -> None:
        ddp, zero_2, zero_3 = {"framework": "ddp"}, {"framework": "deepspeed", "zero_stage": 2}, {"framework": "fsdp2"}
        offloaded = {**zero_2, "offload": "optimizer"}
        tensor = megatron(8, 1, zero_stage=0)
        found = estimated(LLAMA, ddp, zero_2, zero_3, offloaded, {**offloaded, "offload_fraction": 0.5}, tensor)
        staged = found.host_bytes_per_node["checkpoint_peak"] - found.host_bytes_per_node["steady"]
        # Bytes of a weight, two nodes of eight ranks: equal weights on a node once, the shards of all its ranks each.
        per_weight = [4 + 8, 2 + 12 / 2, (4 + 8) / 2, 2, 2 + 12 / 4]
        weights = LLAMA.model.parameters
        np.testing.assert_allclose(staged[:5], np.array(per_weight) * weights, rtol=1e-6)
        # Each tensor rank has its own share of the matrices; the norms are on all of them.
        assert staged[5] == pytest.approx((2 + 12) * weights, rel=2e-3)

    def test_weights_placed_before_they_are_sharded_must_fit_too(self) -> None:
        problem = make_problem("llama-3-70b", h100(8))
        fields = {"framework": "fsdp2", "activation_checkpointing": "full"}
        found = estimated(problem, fields, {**fields, "checkpoint_loading": "every-rank"})
        assert found.device_load_peak_bytes[1] > 4 * problem.model.parameters
        assert fit(problem, found, 0.9).fits.tolist() == [True, False]
        assert found.host_bytes_per_node["load_peak"][1] == pytest.approx(8 * 4 * problem.model.parameters)

    def test_ranks_that_load_the_same_weights_map_the_same_pages(self) -> None:
        ddp = {"framework": "ddp"}
        found = estimated(
            LLAMA, ddp, {**ddp, "checkpoint_loading": "rank0"}, {**ddp, "checkpoint_loading": "every-rank"}
        )
        copies = found.host_bytes_per_node["load_peak"] / (4 * LLAMA.model.parameters)
        np.testing.assert_allclose(copies, [1, 1, 8])


def test_a_stage_has_placeholders_of_its_own_matrices_only() -> None:
    # DeepSeek-V3: the dense layers are the first three, all on the first stage.
    problem = make_problem("deepseek-v3", h100(32), global_batch_size=1024)
    found = estimated(problem, megatron(1, 2, expert_parallel_size=8))
    dense = 2 * (2 * 18432 + 18432) * 7168
    difference = found.parts["framework_overhead"][0] - found.parts["framework_overhead"][1]
    assert difference == pytest.approx(dense)
