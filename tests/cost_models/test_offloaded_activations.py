"""Activations on the host: what the GPU keeps, what the host holds, and how much of the traffic shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.memory import estimate_memory, fit
from cost_models.problem import Problem
from cost_models.results import MemoryEstimate, TimeEstimate
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from tests.cost_models.problems import h100, make_problem, resolved

PROBLEM = make_problem("llama-3-8b", h100(1), sequence_length=8192, global_batch_size=64)
FSDP2 = {"framework": "fsdp2", "zero_stage": 3, "micro_batch_size": 1}
LAYERS = 32


def memory(problem: Problem = PROBLEM, **fields: Any) -> MemoryEstimate:
    table = resolved(problem, {**FSDP2, **fields})
    return estimate_memory(problem, table, all_stages(problem.model, table))


def seconds(problem: Problem = PROBLEM, **fields: Any) -> TimeEstimate:
    table = resolved(problem, {**FSDP2, **fields})
    return estimate_time(problem, table, all_stages(problem.model, table))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_gpu_keeps_two_layers_of_what_is_moved(checkpointing: str, fraction: float) -> None:
    here = memory(activation_checkpointing=checkpointing)
    moved = memory(activation_checkpointing=checkpointing, offload="activations", offload_fraction=fraction)
    layer = here.activation_bytes_per_layer[0]
    gone = (fraction * LAYERS - 2) * layer
    host = {name: moved.host_bytes_per_node[name][0] - here.host_bytes_per_node[name][0] for name in ("steady",)}
    assert host["steady"] == pytest.approx(8 * gone)
    assert here.parts["activations"][0] - moved.parts["activations"][0] <= gone * 1.000001
    assert moved.peak_bytes[0] < here.peak_bytes[0]


def test_loading_knows_nothing_of_them() -> None:
    here, moved = memory(), memory(offload="activations")
    assert moved.host_bytes_per_node["load_peak"][0] == here.host_bytes_per_node["load_peak"][0]
    assert moved.host_bytes_per_node["checkpoint_peak"][0] > here.host_bytes_per_node["checkpoint_peak"][0]


def test_they_must_fit_the_host() -> None:
    assert PROBLEM.cluster.host is not None
    small = replace(PROBLEM.cluster.host, memory_bytes=64 * 2**30)
    cramped = replace(PROBLEM, cluster=replace(PROBLEM.cluster, host=small))
    found = memory(offload="activations")
    assert fit(PROBLEM, found, 0.9).fits[0]
    assert not fit(cramped, found, 0.9).fits[0]


def test_traffic_hides_under_the_computation_as_far_as_it_can() -> None:
    # 8 GPUs, a micro-batch each: every byte crosses once in forward and once in backward.
    assert PROBLEM.cluster.host is not None
    here = seconds()
    layer = memory().activation_bytes_per_layer[0]
    slow = replace(PROBLEM.cluster.host, pcie_bytes_per_s=5e9, pcie_shared_by=1)
    problem = replace(PROBLEM, cluster=replace(PROBLEM.cluster, host=slow))
    found = seconds(problem, offload="activations")
    each = LAYERS * layer / 5e9
    forward, backward = (here.parts[name][0] / 8 for name in ("forward", "backward"))
    assert found.parts["offload"][0] == pytest.approx(8 * (2 * each - forward - backward), rel=1e-6)
    assert found.parts["forward"][0] == here.parts["forward"][0]


def test_little_traffic_costs_nothing() -> None:
    found = seconds(offload="activations", activation_checkpointing="full")
    assert found.parts["offload"][0] == 0
