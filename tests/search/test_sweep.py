"""The sweep against brute force: nothing that it leaves out may matter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.layouts import balanced_layout
from cost_models.workload import FineTuning, Workload
from search import sweep as sweep_module
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.problem import SearchProblem
from search.rank import rescore
from search.sweep import sweep
from search.swept import Sweep
from search.watch import Watch
from tests.search.problems import NARROW, cluster, small_search


def swept(search: SearchProblem) -> Sweep:
    watch = Watch(lambda: 0.0, lambda: False, 0.0, math.inf)
    return sweep(Evaluator(search), search.frameworks or (), watch, lambda _: None)


def brute_force(search: SearchProblem) -> Candidates:
    """Every combination of `space`, with default layers and with balanced ones, judged by the cost models alone."""
    names = list(search.space)
    strategies = [
        {"framework": framework, **dict(zip(names, values, strict=True))}
        for framework in search.frameworks or ()
        for values in itertools.product(*search.space.values())
    ]
    balanced = [
        {**one, "layers_per_stage": balanced_layout(search.model, one["pipeline_parallel_size"], 1)}
        for one in strategies
    ]
    return Evaluator(search).evaluate_strategies(0, strategies + balanced)


def rows(candidates: Candidates) -> Iterator[tuple[Any, ...]]:
    for row in range(len(candidates)):
        strategy = candidates.table.row(row)
        # Of one data and context rank every ZeRO stage is the same.
        alone = strategy["data_parallel_size"] * strategy["context_parallel_size"] == 1
        yield (
            round(float(candidates.objective[row]), 9),
            *(str(value) for name, value in strategy.items() if not (alone and name == "zero_stage")),
        )


NARROW_SEARCHES = {
    "dense": small_search("llama-3-8b", space=NARROW),
    "experts": small_search(
        "mixtral-8x7b",
        clusters=(cluster(nodes=4),),
        space={**NARROW, "expert_parallel_size": (1, 4, 8), "expert_tensor_parallel_size": (1,)},
    ),
}


@pytest.mark.parametrize("search", NARROW_SEARCHES.values(), ids=NARROW_SEARCHES.keys())
def test_finds_what_brute_force_finds(search: SearchProblem) -> None:
    expected = brute_force(search)
    found = swept(search)
    plans = expected.take(expected.acceptable)
    assert len(plans) > 20
    assert set(rows(found.best)) == set(rows(plans))
    assert found.best.objective[0] == plans.objective.min()
    assert set(rows(found.tight)) == set(rows(expected.take(expected.tight)))


def test_every_candidate_uses_all_gpus_and_keeps_the_batch() -> None:
    table = swept(small_search()).best.table
    used = (
        table.tensor_parallel_size
        * table.context_parallel_size
        * table.pipeline_parallel_size
        * table.data_parallel_size
    )
    assert (used == 8).all()
    assert (32 % (table.data_parallel_size * table.micro_batch_size) == 0).all()


PRUNED = {
    "memory is short": small_search("llama-3-70b", clusters=(cluster("dgx-a100"),), frameworks=("deepspeed", "fsdp2")),
    "several nodes": small_search("llama-2-13b", clusters=(cluster("p4d", 2),), frameworks=("megatron-lm",)),
    "experts": small_search("mixtral-8x7b", clusters=(cluster("dgx-h100", 2),), frameworks=("megatron-lm", "fsdp2")),
    "adapters": small_search(
        "llama-3-70b",
        workload=Workload(sequence_length=8192, global_batch_size=16, fine_tuning=FineTuning("lora")),
        frameworks=("fsdp2", "megatron-lm"),
    ),
}


@pytest.mark.parametrize("search", PRUNED.values(), ids=PRUNED.keys())
def test_screening_drops_nothing_that_fits(search: SearchProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    screened = swept(search)
    monkeypatch.setattr(sweep_module, "LEANEST_SLACK", math.inf)
    whole = swept(search)
    assert list(rows(screened.best)) == list(rows(whole.best))
    assert list(rows(screened.tight)) == list(rows(whole.tight))
    assert screened.rejected.keys() == whole.rejected.keys()
    assert screened.evaluated <= whole.evaluated


@pytest.mark.parametrize("search", PRUNED.values(), ids=PRUNED.keys())
def test_what_is_left_out_because_it_is_slower_is_slower(search: SearchProblem) -> None:
    usual, front = swept(search), swept(replace(search, objective="pareto"))
    assert front.evaluated > usual.evaluated
    assert usual.best.objective[0] == front.best.objective[0]


def test_front_is_not_dominated_and_holds_the_fastest() -> None:
    found = swept(small_search())
    seconds, peak = found.front.step_seconds, found.front.peak_bytes
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(peak) < 0).all()
    assert seconds[0] == found.best.step_seconds.min()


def test_reasons_are_counted() -> None:
    search = small_search("llama-3-70b", frameworks=("fsdp2",), space={"activation_checkpointing": ("none",)})
    assert swept(search).rejected["out_of_memory"] > 0
    # 8 key-value heads under 16-way tensor parallelism, 80 layers in 64 x 2 chunks
    wide = small_search("llama-3-70b", frameworks=("megatron-lm",), clusters=(cluster(nodes=8),))
    assert swept(wide).rejected["fewer_layers_than_chunks"] > 0


def test_one_rank_offloads_with_the_stage_that_an_offload_needs() -> None:
    alone = cluster(nodes=1, gpus_per_node=1, nvlink_domain_gpus=1)
    search = small_search("llama-2-7b", clusters=(alone,), frameworks=("deepspeed", "megatron-lm", "fsdp2"))
    best = swept(search).best.table
    assert len(best) > 0
    # 16 bytes a parameter do not fit: every plan offloads, sharded over one rank
    assert not best.is_choice("offload", "none").any()
    assert best.zero_stage.min() == 1


def test_one_rank_has_no_two_plans_that_differ_in_their_zero_stage_alone() -> None:
    alone = cluster(nodes=1, gpus_per_node=1, nvlink_domain_gpus=1)
    best = swept(small_search("gpt-2-xl", clusters=(alone,), workload=Workload(1024, 32))).best.table
    kept = best.is_choice("offload", "none")
    assert set(best.zero_stage[kept].tolist()) == {0}


def test_named_values_are_the_only_ones() -> None:
    space = {"zero_stage": (1, 3), "tensor_parallel_size": (2,), "overlap_communication": (True, False)}
    best = swept(small_search(space=space)).best
    assert set(best.table.zero_stage.tolist()) == {1, 3}
    assert set(best.table.tensor_parallel_size.tolist()) == {2}
    assert set(best.table.overlap_communication.tolist()) == {True, False}


def test_zero_bubble_of_megatron_lm_is_searched_where_it_is_named() -> None:
    search = small_search(frameworks=("megatron-lm",), clusters=(cluster(nodes=2),))
    assert not swept(search).best.table.is_choice("pipeline_schedule", "zero-bubble").any()
    named = small_search(
        frameworks=("megatron-lm",), clusters=(cluster(nodes=2),), space={"pipeline_schedule": ("zero-bubble",)}
    )
    assert swept(named).best.table.is_choice("pipeline_schedule", "zero-bubble").all()


def test_megatron_lm_keeps_its_parameters_unless_space_says_otherwise() -> None:
    cramped: dict[str, Any] = {"frameworks": ("megatron-lm",), "clusters": (cluster("dgx-a100", 2),)}
    assert (
        not swept(small_search("llama-3-70b", **cramped))
        .best.table.is_choice("offload", "optimizer-and-parameters")
        .any()
    )
    named = small_search("llama-3-70b", **cramped, space={"offload": ("optimizer-and-parameters",)})
    assert len(swept(named).best) > 0


@pytest.mark.parametrize("search", [PRUNED["several nodes"], PRUNED["experts"]], ids=["uneven layers", "experts"])
def test_the_stages_that_a_sweep_looks_at_give_the_figures_of_all(search: SearchProblem) -> None:
    found = swept(replace(search, clusters=(cluster("dgx-h100", 3),))).best
    assert (found.table.pipeline_parallel_size > 3).any()
    whole = rescore(Evaluator(replace(search, clusters=(cluster("dgx-h100", 3),))), found)
    for name in ("step_seconds", "peak_bytes", "required_upper_bytes", "needed_bytes"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-12)
    assert (found.fits == whole.fits).all()


def test_fp8_weights_are_never_worse_than_16_bit_ones() -> None:
    """What the lattice leaves out: with precision fp8 it holds 8-bit weights only, where something writes them."""
    narrow = {name: values for name, values in NARROW.items() if name != "zero_stage"}
    search = small_search(
        workload=Workload(4096, 32, precision="fp8"),
        frameworks=("megatron-lm",),
        space={**narrow, "zero_stage": (1, 3), "parameter_dtype": ("bf16", "fp8")},
    )
    both = brute_force(search)
    wide = both.table.is_choice("parameter_dtype", "bf16")
    assert wide.sum() * 2 == len(both)
    assert (both.valid[wide] == both.valid[~wide]).all()
    assert (both.step_seconds[~wide] <= both.step_seconds[wide])[both.valid[wide]].all()
    assert (both.required_upper_bytes[~wide] <= both.required_upper_bytes[wide])[both.valid[wide]].all()


@pytest.mark.parametrize(("zero_stages", "dtype"), [((0,), "bf16"), ((1, 3), "fp8")])
def test_fp8_weights_where_the_optimizer_writes_them(zero_stages: tuple[int, ...], dtype: str) -> None:
    search = small_search(
        workload=Workload(4096, 32, precision="fp8"),
        frameworks=("megatron-lm",),
        space={**NARROW, "zero_stage": zero_stages, "data_parallel_size": (2, 4)},
    )
    best = swept(search).best
    assert {best.table.row(row)["parameter_dtype"] for row in range(len(best))} == {dtype}
