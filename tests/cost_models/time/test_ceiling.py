"""No strategy gets more out of the GPUs than any public run did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.hardware import gpu_names, load_gpu
from cost_models.results import TIME_PARTS
from cost_models.stages import all_stages
from cost_models.time import estimate_time
from cost_models.time.ceiling import HIGHEST_HARDWARE_UTILISATION, HIGHEST_UTILISATION, below_ceiling
from cost_models.time.flops import skipped_flops
from tests.cost_models.problems import make_problem, resolved

CASES = [("palm-540b", 1024), ("llama-3-8b", 131_072)]
"""The widest matrices, and attention so long that its masked half, which kernels skip, is most of the model's FLOP."""


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize(("model", "sequence_length"), CASES)
def test_utilisation_stays_below_what_runs_have_reached(gpu: str, model: str, sequence_length: int) -> None:
    cluster: dict[str, Any] = {"nodes": 1, "gpus_per_node": 8, "gpu": gpu}
    found = load_gpu(gpu)
    kinds = {
        "precision": "bf16" if found.supports("bf16") else "fp16",
        "attention": "flash" if found.flash_attention else "eager",
    }
    problem = make_problem(model, cluster, sequence_length=sequence_length, **kinds)
    rows = [
        {"framework": name, "micro_batch_size": size, "activation_checkpointing": kind}
        for name in ("nanotron", "fsdp2")
        for size in (1, 16)
        for kind in ("none", "full")
    ]
    table = resolved(problem, *rows)
    time = estimate_time(problem, table, all_stages(problem.model, table))
    most = time.step_seconds * problem.cluster.gpus * time.peak_flops_per_s * (1 + 1e-12)
    assert (time.model_flops <= HIGHEST_UTILISATION * most).all()
    executed = time.hardware_flops - skipped_flops(problem)
    assert (executed <= HIGHEST_HARDWARE_UTILISATION * most).all()
    np.testing.assert_allclose(np.sum([time.parts[name] for name in TIME_PARTS], axis=0), time.step_seconds, rtol=1e-12)


def test_only_rows_above_the_ceiling_are_held() -> None:
    parts = {name: np.zeros(2) for name in TIME_PARTS} | {
        "forward": np.array([1.0, 1.0]),
        "backward": np.array([2.0, 2.0]),
        "optimizer": np.array([1.0, 1.0]),
    }
    held, step = below_ceiling(parts, np.array([3.9, 5.5]))
    assert step.tolist() == [4.0, 5.5]
    assert held["forward"].tolist() == [1.0, 1.5]
    assert held["backward"].tolist() == [2.0, 3.0]
    assert held["optimizer"].tolist() == [1.0, 1.0]
