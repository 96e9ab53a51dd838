"""Megatron-Core's own config classes take what is written for them."""

from __future__ import annotations

from typing import Any

import pytest

from search.launch.megatron_bridge import container
from search.launch.megatron_lm import arguments
from tests.search.test_launch_megatron import JOBS, RECORDED
from tests.search.test_launch_parsers import asked


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, Any]]:
    """What the classes say of every job, by name."""
    jobs = [
        {
            "options": {name: list(values) for name, values in arguments(job).items()},
            "kinds": {name: RECORDED["options"][name] for name in arguments(job)},
            "bridge": {name: container(job)[name] for name in ("model", "mixed_precision")},
        }
        for job in JOBS.values()
    ]
    return dict(zip(JOBS, asked("megatron_core", jobs), strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_the_classes_take_the_plan_and_see_it_as_planned(described: dict[str, dict[str, Any]], name: str) -> None:
    strategy, said = JOBS[name].strategy, described[name]
    assert said["version"] == "0.16.1"
    chunks = strategy["layers_per_stage"]
    assert said["layers"] == (chunks if len(set(chunks)) > 1 else None)
    assert (said["virtual"] or 1) == strategy["virtual_pipeline_size"]
    if strategy["activation_checkpointing"] == "selective":
        assert set(said["recompute_modules"]) == set(strategy["recompute_modules"])
    sharded = strategy["zero_stage"] > 0 and JOBS[name].workload.optimizer != "muon"
    overlaps = strategy["overlap_communication"]
    assert said["overlaps"] == [overlaps, overlaps and sharded]
    assert said["differs_under_bridge"] == []
    assert said["offload"] == (strategy["offload"] == "optimizer")
