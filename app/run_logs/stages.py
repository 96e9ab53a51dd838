"""From the readings of ranks to the peaks of pipeline stages.

The contract's ranks lie innermost to outermost as tensor, context, data, pipeline, and so do those of Megatron-LM (by
default), DeepSpeed's 3D topology, torchtitan and nanotron: a stage is a run of GPUs ÷ stages ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.run_logs.facts import LoggedRun, Reading

FIGURES: Final = (
    ("peak_allocated_gib", "allocated_gib"),
    ("peak_reserved_gib", "reserved_gib"),
    ("peak_device_gib", "device_gib"),
)


def measured_by_stage(run: LoggedRun, stages: object, gpus: int | None) -> list[dict[str, Any]]:
    """`measured` of each stage that was read, the fullest first; step time and out of memory belong to that one.

    One entry without memory where none was read, none at all where nothing was measured.
    """
    peaks: dict[int | None, dict[str, float]] = {}
    for reading in run.readings:
        stage = _stage(run, reading, stages, gpus)
        peak = peaks.setdefault(stage, {})
        for name, attribute in FIGURES:
            value = getattr(reading, attribute)
            if value is not None and value > 0:
                peak[name] = max(peak.get(name, 0.0), value)
    found: list[dict[str, Any]] = []
    for stage, peak in sorted(peaks.items(), key=_fullness, reverse=True):
        if peak:
            found.append(peak | ({} if stage is None else {"pipeline_stage": stage}))
    whole: dict[str, Any] = {}
    if run.step_seconds is not None and run.step_seconds > 0:
        whole["step_seconds"] = run.step_seconds
    if run.out_of_memory:
        whole["out_of_memory"] = True
    if not found:
        return [whole] if whole else []
    return [found[0] | whole, *found[1:]]


def _stage(run: LoggedRun, reading: Reading, stages: object, gpus: int | None) -> int | None:
    if not isinstance(stages, int) or isinstance(stages, bool) or stages <= 1:
        return None
    if reading.stage is not None:
        return reading.stage
    if reading.rank is None or not gpus or gpus % stages or run.ranks_by_data_first:
        return 0 if reading.rank == 0 else None
    return reading.rank // (gpus // stages) if reading.rank < gpus else None


def _fullness(entry: tuple[int | None, Mapping[str, float]]) -> tuple[float, float, float]:
    """By what is allocated, which the allocator's history does not blur; then by what is reserved; then the first."""
    stage, peak = entry
    held = peak.get("peak_reserved_gib", peak.get("peak_device_gib", 0.0))
    return peak.get("peak_allocated_gib", held), held, 0.0 if stage is None else -float(stage)
