"""The script for DistributedDataParallel."""

from __future__ import annotations

import ast
import json
from typing import Any

from search.launch.ddp import WITHOUT_MEANING, write
from search.launch.job import LaunchJob
from search.launch.targets import write as write_target
from tests.search.launch_fields import check_every_field_has_a_fate, with_strategy
from tests.search.launch_jobs import launch_job
from tests.search.test_launch_accelerate import common_refused, common_written


def job(**strategy: Any) -> LaunchJob:
    return launch_job(framework="ddp", **strategy)


def settings(planned: LaunchJob) -> dict[str, Any]:
    return dict(json.loads(next(file.content for file in write(planned).files if file.path == "settings.json")))


def test_settings_say_how_gradients_are_reduced() -> None:
    said = settings(job(gradient_as_bucket_view=True))
    assert (said["gradient_as_bucket_view"], said["bucket_cap_mb"], said["static_graph"]) == (True, 25, False)
    assert (said["micro_batch_size"], said["gradient_accumulation_steps"]) == (1, 8)
    assert settings(job(micro_batch_size=8))["static_graph"] is True


def test_it_is_the_first_target_of_its_framework() -> None:
    files = write_target(job())
    assert files.target == "torchrun"
    assert [file.path for file in files.files] == ["settings.json", "model.py", "train.py"]
    ast.parse(files.files[2].content)


def test_every_field_is_written_or_refused_or_has_no_meaning() -> None:
    base = job()
    refused = {
        **common_refused("ddp"),
        "zero_stage": with_strategy(base, zero_stage=1),
        "data_parallel_replicate_size": with_strategy(base, data_parallel_replicate_size=2),
        "context_parallel_size": with_strategy(base, context_parallel_size=2),
    }
    written = {
        **common_written("ddp"),
        "gradient_as_bucket_view": (base, job(gradient_as_bucket_view=True)),
    }
    without = {**WITHOUT_MEANING, "context_parallel_kind": "of context parallelism, which is refused"}
    check_every_field_has_a_fate(write, written, refused, without)
