"""Which public measured runs stand behind the figures: read from `coverage.toml`, which `benchmarks.coverage` writes.

Silicon and framework by silicon and framework, because the coefficients of time belong to those, and memory's formulas
to a framework: how many runs, of which kinds of model, precisions and ZeRO stages, on how many GPUs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class MeasuredRuns:
    """Runs of one framework on one silicon that have a figure."""

    chip: str
    generation: str
    framework: str
    runs: int
    kinds: Mapping[str, int]
    """Runs by kind of model (`model_kind.KINDS`)."""
    precisions: Mapping[str, int]
    zero_stages: Mapping[str, int]
    least_gpus: int
    most_gpus: int


@dataclass(frozen=True)
class Coverage:
    """All runs with a measured step time, and all with measured memory."""

    time: tuple[MeasuredRuns, ...]
    memory: tuple[MeasuredRuns, ...]

    def time_runs(self, chip: str | None, framework: str) -> MeasuredRuns | None:
        """Step times of a framework on a silicon, if there are any."""
        return next((runs for runs in self.time if (runs.chip, runs.framework) == (chip, framework)), None)

    def memory_runs(self, generation: str | None, framework: str) -> tuple[MeasuredRuns, ...]:
        """Measured memory of a framework on a generation: what a GPU's context takes is the generation's."""
        return tuple(runs for runs in self.memory if (runs.generation, runs.framework) == (generation, framework))


@cache
def coverage() -> Coverage:
    """That of the package."""
    document = tomllib.loads(resources.files("cost_models").joinpath("coverage.toml").read_text(encoding="utf-8"))
    return Coverage(*(tuple(_measured(entry) for entry in document[figure]) for figure in ("time", "memory")))


def _measured(entry: Mapping[str, Any]) -> MeasuredRuns:
    least, most = entry["gpus"]
    fields = {name: value for name, value in entry.items() if name != "gpus"}
    return MeasuredRuns(**fields, least_gpus=least, most_gpus=most)
