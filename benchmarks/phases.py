"""Where the time of a search goes: a sampling profiler that knows its stages.

A timer of CPU time interrupts the main thread; each sample counts for the innermost frame that says what is done and
the innermost one that says for what stage. It costs a few per cent, whereas a tracing profiler doubles the time of
small functions. Kernels interrupt less often than asked, so samples are shares of the CPU time that was measured.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERVAL_SECONDS: Final = 0.001
OTHER: Final = "other"

STAGES: Final[Mapping[str, str]] = {
    "search.lattice": "lattice",
    "search.sweep": "lattice",
    "search.swept": "lattice",
    "search.optuna_engine": "study",
    "search.study_space": "study",
    "search.rank": "ranking",
    "search.explain": "explaining",
    "search.alternatives": "explaining",
    "search.verdict": "explaining",
    "app.services.search_runs": "storing",
}
"""By module; `_screen` of the sweep is a stage of its own."""
WORK: Final[Mapping[str, str]] = {
    "search.lattice": "laying out",
    "search.axes": "laying out",
    "cost_models.resolve": "resolving",
    "cost_models.rules": "rules",
    "cost_models.memory": "memory",
    "cost_models.time": "time",
    "cost_models.learned": "learned",
    "cost_models.answer": "answers",
    "cost_models.provenance": "answers",
    "search.swept": "keeping the best",
    "optuna": "Optuna",
    "search.study_space": "study space",
    "sqlalchemy": "SQL",
}
"""By module or package."""


class Phases:
    """Samples so far."""

    def __init__(self) -> None:
        self._samples: Counter[tuple[str, str]] = Counter()
        self._cpu_seconds = 0.0

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample the main thread while the block runs."""
        before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
        begin = time.process_time()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            self._cpu_seconds += time.process_time() - begin
            signal.signal(signal.SIGPROF, before)

    def table(self, searches: int) -> str:
        """CPU milliseconds a search, by stage in columns and by work in rows, as Markdown."""
        stages = [stage for stage, _ in Counter(self._by(0)).most_common()]
        lines = [f"| | {' | '.join(stages)} | all |", f"| --- |{' ---: |' * (len(stages) + 1)}"]
        scale = self._cpu_seconds * 1e3 / searches / max(self._samples.total(), 1)
        for work, total in Counter(self._by(1)).most_common():
            cells = [self._samples[stage, work] for stage in stages]
            lines.append(_line(work, [*cells, total], scale))
        lines.append(_line("all", [*(self._by(0)[stage] for stage in stages), self._samples.total()], scale))
        return "\n".join(lines)

    def _by(self, place: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for key, count in self._samples.items():
            counts[key[place]] += count
        return counts

    def _sample(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler's signature)
        stage = work = ""
        while frame is not None and not (stage and work):
            module = frame.f_globals.get("__name__", "")
            work = work or _named(WORK, module)
            if not stage:
                screens = module == "search.sweep" and frame.f_code.co_name == "_screen"
                stage = "screening" if screens else STAGES.get(module, "")
            frame = frame.f_back
        self._samples[stage or OTHER, work or OTHER] += 1


def _named(names: Mapping[str, str], module: str) -> str:
    """What the module or the package that it is in is named."""
    while module:
        if module in names:
            return names[module]
        module = module.rpartition(".")[0]
    return ""


def _line(name: str, samples: list[int], scale: float) -> str:
    return f"| {name} | {' | '.join(f'{count * scale:.0f}' for count in samples)} |"
