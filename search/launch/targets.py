"""Which targets a framework has, and what writes the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cost_models.errors import InvalidInput
from cost_models.frameworks import FRAMEWORKS
from search.launch import (
    accelerate,
    ddp,
    deepspeed,
    hf_trainer,
    megatron_bridge,
    megatron_lm,
    nanotron,
    torchtitan,
)
from search.launch.job import LaunchFiles, LaunchJob

WRITERS: Final[Mapping[str, Callable[[LaunchJob], LaunchFiles]]] = {
    megatron_lm.TARGET: megatron_lm.write,
    megatron_bridge.TARGET: megatron_bridge.write,
    deepspeed.TARGET: deepspeed.write,
    hf_trainer.TARGET: hf_trainer.write,
    torchtitan.TARGET: torchtitan.write,
    ddp.TARGET: ddp.write,
    accelerate.TARGET: accelerate.write,
    nanotron.TARGET: nanotron.write,
}
"""By target; one that several frameworks have tells them apart itself."""
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {framework.name: framework.launch_targets for framework in FRAMEWORKS}
"""By framework, in the contract's order: the first is the default."""


def write(job: LaunchJob, target: str | None = None) -> LaunchFiles:
    """The files that start a plan; `target` None: the framework's first.

    Raises:
        InvalidInput: The plan's framework has no such target.
        NotExpressible: The target has no setting for some of what was planned.
    """
    framework = str(job.strategy["framework"])
    known = TARGETS[framework]
    chosen = known[0] if target is None else target
    if chosen not in known:
        message = f"{framework} has no target {chosen!r}; it has {', '.join(known)}"
        raise InvalidInput(("query", "target"), "unknown_target", message)
    return WRITERS[chosen](job)
