"""What a log says of one run, in the contract's words, before anything that it does not say is added.

LoggedRun      one run: parts of a RunRecord, memory readings by rank, step times
Facts          collects them while a reader goes through the lines
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.run_logs.steady import steady_step_seconds

Path = tuple[str, ...]
GIB_MIB: Final = 1024.0
"""MiB of one GiB."""
MOST_RANKS: Final = 200_000
MOST_STEPS: Final = 200_000
"""Of a run that are kept: more tell nothing new, and an upload must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Peaks of one rank, GiB; `None` where the log does not tell."""

    rank: int | None = None
    """None: the log does not say whose."""
    stage: int | None = None
    """Where the log names the pipeline stage itself."""
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    device_gib: float | None = None

    def joined(self, other: Reading) -> Reading:
        """The larger of both, figure by figure."""
        return replace(
            self,
            allocated_gib=_larger(self.allocated_gib, other.allocated_gib),
            reserved_gib=_larger(self.reserved_gib, other.reserved_gib),
            device_gib=_larger(self.device_gib, other.device_gib),
        )


@dataclass(frozen=True)
class LoggedRun:
    """One run of a log. Immutable; completed with what the log does not say by `app.run_logs.completion`."""

    sections: Mapping[str, Mapping[str, Any]]
    """`model cluster workload strategy software`, each with what the log says."""
    gpus: int | None
    """All GPUs of the run."""
    readings: tuple[Reading, ...]
    step_seconds: float | None
    out_of_memory: bool
    ranks_by_data_first: bool
    """Pipeline ranks lie inside the data ranks (Megatron-LM's `--use-tp-pp-dp-mapping`)."""
    asks: tuple[Path, ...]
    """What this framework's logs leave open beyond what every run needs."""
    doubts: Mapping[Path, str]
    """What the log says and contradicts elsewhere: counts as not said, with the reason."""
    notes: tuple[str, ...]


@dataclass
class Facts:
    """Collects what a log says of one run."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    gpus: int | None = None
    peaks: dict[tuple[int | None, int | None], Reading] = field(default_factory=dict)
    """By rank and stage."""
    intervals: list[float] = field(default_factory=list)
    """Seconds of a step, of each interval that was timed."""
    average_step_seconds: float | None = None
    """Over all steps, warm-up included; stands in where no interval is steady."""
    out_of_memory: bool = False
    ranks_by_data_first: bool = False
    asks: list[Path] = field(default_factory=list)
    doubts: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def say(self, path: str, value: Any) -> None:
        """Note a fact: `path` as in `strategy.tensor_parallel_size`; None says nothing."""
        if value is None:
            return
        section, _, name = path.partition(".")
        self.sections.setdefault(section, {})[name] = value

    def said(self, path: str) -> Any:
        """What was said, or None."""
        section, _, name = path.partition(".")
        return self.sections.get(section, {}).get(name)

    def architecture(self, name: str, value: Any) -> None:
        """Note a dimension of the model."""
        if value is not None:
            self.sections.setdefault("model", {}).setdefault("architecture", {})[name] = value

    def ask(self, path: str) -> None:
        """The log leaves this open, and it matters."""
        asked = tuple(path.split("."))
        if asked not in self.asks:
            self.asks.append(asked)

    def doubt(self, path: str, reason: str) -> None:
        """The log contradicts what it said: that is forgotten, and asked for."""
        *parents, name = path.split(".")
        section: dict[str, Any] = self.sections
        for parent in parents:
            section = section.get(parent, {})
        section.pop(name, None)
        self.doubts[(*parents, name)] = reason

    def peak(self, reading: Reading) -> None:
        """Note a reading; a rank's peak is the largest of all."""
        place = (reading.rank, reading.stage)
        known = self.peaks.get(place)
        if known is not None or len(self.peaks) < MOST_RANKS:
            self.peaks[place] = reading if known is None else known.joined(reading)

    def note(self, text: str) -> None:
        """How something was read; listed in `assumptions` of the answer, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def measured_anything(self) -> bool:
        """Whether training has left a trace."""
        return bool(self.peaks or self.intervals or self.out_of_memory or self.average_step_seconds is not None)

    def run(self) -> LoggedRun:
        """What was collected, with its steady step time."""
        steady, how = steady_step_seconds(self.intervals)
        if steady is None and self.average_step_seconds is not None:
            steady, how = self.average_step_seconds, "step_seconds is the average of all steps, warm-up included"
        if how:
            self.note(how)
        return LoggedRun(
            sections=self.sections,
            gpus=self.gpus,
            readings=tuple(self.peaks.values()),
            step_seconds=None if steady is None else round(steady, 9),
            out_of_memory=self.out_of_memory,
            ranks_by_data_first=self.ranks_by_data_first,
            asks=tuple(self.asks),
            doubts=self.doubts,
            notes=tuple(self.notes),
        )


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one
