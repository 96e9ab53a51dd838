"""What is said of the reduction of gradients is what is priced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.time.coefficients import default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.protocols import PROTOCOLS
from cost_models.time.reductions import gradient_reductions
from cost_models.workload import FineTuning
from tests.cost_models.problems import h100, make_problem, megatron, resolved

LLAMA = make_problem("llama-3-70b", h100(32))


def levels(strategy: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    [found] = gradient_reductions(LLAMA, resolved(LLAMA, strategy))
    return [(level.collective, level.algorithm, level.ranks, level.nodes) for level in found]


def test_shards_over_all_nodes_are_one_flat_reduction() -> None:
    assert levels({"framework": "fsdp2"}) == [("reduce-scatter", "ring", 256, 32)]


def test_replicas_of_shards_are_reduced_in_two_levels() -> None:
    assert levels({"framework": "fsdp2", "data_parallel_replicate_size": 32}) == [
        ("reduce-scatter", "ring", 8, 1),
        ("all-reduce", "tree", 32, 32),
    ]


def test_without_shards_gradients_are_summed() -> None:
    assert levels(megatron(8, 4, zero_stage=0)) == [("all-reduce", "tree", 8, 8)]


def test_one_rank_reduces_nothing() -> None:
    assert levels(megatron(8, 32, virtual_pipeline_size=1, layers_per_stage=[2] * 8 + [3] * 16 + [2] * 8)) == []


def test_adapters_are_not_described() -> None:
    problem = make_problem("llama-3-70b", h100(1), fine_tuning=FineTuning("lora"))
    assert gradient_reductions(problem, resolved(problem, {"framework": "fsdp2"})) == [()]


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("ranks", [2, 8, 64, 512, 4096])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_the_protocol_that_is_named_is_the_one_that_is_priced(summed: bool, ranks: int, size: float) -> None:
    cluster, coefficients = make_problem("llama-3-70b", h100(512)).cluster, default_coefficients()
    network, message = Network(cluster, coefficients), np.array([size])
    sizes, stride = np.array([ranks]), np.array([1])
    chosen, _ = network.choice(network.channel(sizes, stride), message, summed=summed)
    alone = Network(cluster, coefficients, (PROTOCOLS[int(chosen[0])],))
    seconds = [
        (one.all_reduce if summed else one.all_gather)(one.channel(sizes, stride), message)[0]
        for one in (network, alone)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)
