"""The registry of launch targets: the contract's names, in its order, each written for each of its frameworks."""

from __future__ import annotations

import pytest

from cost_models.errors import InvalidInput
from search.launch.targets import TARGETS, WRITERS, write
from tests.search.launch_jobs import launch_job

CONTRACT = {
    "megatron-lm": ("megatron-lm", "megatron-bridge"),
    "deepspeed": ("deepspeed", "hf-trainer", "accelerate"),
    "fsdp2": ("torchtitan", "accelerate"),
    "fsdp1": ("accelerate",),
    "ddp": ("torchrun", "accelerate"),
    "nanotron": ("nanotron",),
}
PAIRS = [(framework, target) for framework, targets in CONTRACT.items() for target in targets]


def test_the_targets_are_the_contract_s_and_all_are_written() -> None:
    assert dict(TARGETS) == CONTRACT
    assert set(WRITERS) == {target for targets in CONTRACT.values() for target in targets}


@pytest.mark.parametrize(("framework", "target"), PAIRS)
def test_a_plain_plan_has_files_for_every_target(framework: str, target: str) -> None:
    written = write(launch_job(framework=framework), target)
    assert written.target == target
    assert written.files
    assert all(file.content.strip() for file in written.files)
    paths = [file.path for file in written.files]
    assert len(set(paths)) == len(paths)
    assert written.command
    assert all(any(note.startswith(f"{name}=") for note in written.notes) for name in written.environment)


@pytest.mark.parametrize("framework", CONTRACT)
def test_the_first_is_the_default(framework: str) -> None:
    assert write(launch_job(framework=framework)).target == CONTRACT[framework][0]


@pytest.mark.parametrize(("framework", "target"), [("ddp", "torchtitan"), ("megatron-lm", "nanotron"), ("fsdp2", "x")])
def test_a_target_of_another_framework_is_none(framework: str, target: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        write(launch_job(framework=framework), target)
    assert (refused.value.loc, refused.value.code) == (("query", "target"), "unknown_target")
    assert ", ".join(CONTRACT[framework]) in refused.value.message
