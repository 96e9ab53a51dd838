"""What nanotron does in a step, by its code: trainer.py, optim/gradient_accumulator.py, run_multinode.sh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.problem import Problem
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.coefficients import Coefficients, default_coefficients
from cost_models.time.collectives import Network
from tests.cost_models.problems import h100, make_problem, resolved


def problem(nodes: int) -> Problem:
    return make_problem("llama-3-8b", h100(nodes), global_batch_size=256)


def part(nodes: int, name: str, coefficients: Coefficients | None = None, **fields: Any) -> float:
    """One part of a step, or the whole of it."""
    solved = problem(nodes)
    table = resolved(solved, {"framework": "nanotron", **fields})
    estimate = estimate_time(solved, table, all_stages(solved.model, table), coefficients)
    return float(estimate.step_seconds[0] if name == "step" else estimate.parts[name][0])


class TestGradients:
    def test_with_zero_1_one_all_reduce_of_fp32_gradients_and_one_gather_lie_bare(self) -> None:
        solved, tensor = problem(4), 4
        network = Network(solved.cluster, default_coefficients())
        group = network.channel(np.array([8]), np.array([tensor]))
        # projections and embeddings are split over tensor ranks, norms are not
        norms = (2 * 32 + 1) * 4096
        weights = (solved.model.parameters - norms) / tensor + norms - 4096  # the last norm is not counted
        bare = network.all_reduce(group, np.array([4.0 * weights])) + network.all_gather(
            group, np.array([2.0 * weights])
        )
        sharded = part(4, "data_parallel", tensor_parallel_size=tensor, zero_stage=1)
        assert sharded == pytest.approx(float(bare[0]), rel=1e-3)

    def test_without_it_they_hide_under_backward(self) -> None:
        hidden, bare = (part(4, "data_parallel", tensor_parallel_size=4, zero_stage=stage) for stage in (0, 1))
        assert hidden < 0.8 * bare


class TestBarriers:
    """The launch script for several nodes turns on checks that meet before every collective, one rank after another."""

    @staticmethod
    def added(nodes: int, tensor: int, pipeline: int, **fields: Any) -> float:
        """By a second a rank: what a micro-batch of the slowest stage waits in forward."""
        usual = default_coefficients()
        nanotron = usual.frameworks["nanotron"]
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "micro_batch_size": 1}
        forward = [
            part(
                nodes,
                "forward",
                replace(usual, frameworks={**usual.frameworks, "nanotron": changed}),
                **sizes,
                **fields,
            )
            for changed in (replace(nanotron, barrier_seconds=seconds) for seconds in (1.0, 2.0))
        ]
        micro_batches = 256 / (nodes * 8 / tensor / pipeline)
        return (forward[1] - forward[0]) / micro_batches

    @pytest.mark.parametrize(("layers", "collectives"), [([20, 12], 4 * 20 + 1), ([12, 20], 4 * 20 + 4)])
    def test_four_a_layer_one_of_the_embedding_four_of_the_head(self, layers: list[int], collectives: int) -> None:
        added = self.added(2, tensor=4, pipeline=2, layers_per_stage=layers)
        assert added == pytest.approx(4 * collectives, rel=1e-9)

    def test_none_without_a_pipeline_across_hosts_or_without_collectives(self) -> None:
        assert self.added(1, tensor=4, pipeline=2) == 0
        assert self.added(2, tensor=4, pipeline=1) == 0
        assert self.added(2, tensor=1, pipeline=2) == 0
