"""A worker whose searches take as many steps and seconds as their request says, and whose trainings learn nothing.

Each step reports one trial; steps that an earlier attempt has stored are not repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.jobs.worker import new_worker_name, run_worker
from app.logs import configure_logging
from app.services.search_runs import Report
from app.services.serving_model import Served
from app.settings import Settings
from search.result import Progress, SearchResult, Trial


def solve_slowly(
    request: Mapping[str, Any],
    *,
    past: Sequence[Trial],
    report: Report,
    cancelled: Callable[[], bool],
    served: Served,
) -> SearchResult:
    steps, pause = request["steps"], threading.Event()
    done = len(past)
    while done < steps and not cancelled():
        pause.wait(request["step_seconds"])
        report(_progress(done + 1, steps), [_trial(done)])
        done += 1
    return SearchResult(
        plans=(),
        tight=(),
        pareto=(),
        current=None,
        space_size=steps,
        evaluated=done - len(past),
        trials=done,
        stopped_by="trials",
        elapsed_seconds=0.0,
        memory_model_version=served.version,
        rejected={},
        verdict="",
        assumptions=(),
    )


def _progress(done: int, steps: int) -> Progress:
    return Progress(phase="study", done=done, total=steps, trials=done, best_step_seconds=None)


def _trial(number: int) -> Trial:
    return Trial(
        number=number,
        parameters={},
        nodes=1,
        strategy={},
        valid=True,
        fits=True,
        values=(1.0,),
        constraints={},
        step_seconds=1.0,
        peak_bytes=1.0,
        required_upper_bytes=1.0,
    )


if __name__ == "__main__":
    settings = Settings()
    configure_logging(settings)
    run_worker(settings, solve_slowly, name=new_worker_name(), training_module="tests.integration.slow_training")
