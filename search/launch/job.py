"""What launch files are written from, and what they are: values that every target shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.workload import Workload


@dataclass(frozen=True, kw_only=True)
class LaunchJob:
    """One plan: a strategy with every field filled, and what it was planned for."""

    model: ModelArchitecture
    cluster: Cluster
    workload: Workload
    strategy: Mapping[str, Any]
    """In the words of the contract, as an answer resolves it."""

    @property
    def micro_batches(self) -> int:
        """Of one step on one data rank: gradient accumulation steps, or micro-batches in flight with a pipeline."""
        strategy = self.strategy
        return int(self.workload.global_batch_size // (strategy["data_parallel_size"] * strategy["micro_batch_size"]))


@dataclass(frozen=True)
class LaunchFile:
    """One text file."""

    path: str
    content: str


@dataclass(frozen=True, kw_only=True)
class LaunchFiles:
    """The contract's answer to `plans/{rank}/launch`."""

    target: str
    files: tuple[LaunchFile, ...]
    command: str
    """What to type, in the folder of the files, on each node or once, as `notes` say."""
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a person has to fill in or to know; the reason of each environment variable."""


class NotExpressible(Exception):
    """The target has no setting for some fields of the strategy or workload."""

    def __init__(self, target: str, reasons: Mapping[str, str]) -> None:
        super().__init__(f"{target} cannot express " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))
        self.target = target
        self.reasons = dict(reasons)
        """Field of the strategy or workload → why not."""
