"""Errors of the cost models on measured runs: time, memory, order, out of memory.

usage: python -m benchmarks.validate [RUNS.jsonl ...] [--by source|family|gpu|framework] [--confidence 0.5] [--rows]

Without files: the published runs of `cost_models.published_runs`, those that a coefficient was fitted on (seen) and
those that none was (unseen) apart. Figures are those of the acceptance scorer, in process: `t` errors of step time in
per cent (median, 90th percentile, bias = median of predicted / measured), `rho` and `regret` over sets of five and
more strategies with everything else equal, `m` errors of peak memory, `oom` runs that ran out of memory but are called
fitting, `unfit` runs that ran but are called unfit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import Errors, errors_of
from benchmarks.outcomes import MEMORY, Outcome, outcomes
from cost_models.published_runs import published_runs

BY = ("source", "family", "gpu", "framework")
FEWEST_FIGURES = 8
"""Of a group that counts in the mean over groups."""
HEAD = (
    f"{'':28}{'runs':>5}{'refused':>8} |{'t.n':>5}{'t.med':>7}{'t.p90':>7}{'t.bias':>7}{'rho':>6}{'regret':>7} |"
    f"{'m.n':>5}{'m.med':>7}{'m.p90':>7}{'m.bias':>7} |{'oom':>7}{'unfit':>9}"
)


def line(name: str, errors: Errors) -> str:
    """One group as a line of the report."""
    return (
        f"{name:28}{errors.runs:5}{errors.refused:8} |{errors.times:5}{_percent(errors.time_median)}"
        f"{_percent(errors.time_p90)}{_percent(errors.time_bias)}{_two_places(errors.spearman)}"
        f"{_percent(errors.regret)} |{errors.memories:5}{_percent(errors.memory_median)}{_percent(errors.memory_p90)}"
        f"{_percent(errors.memory_bias)} |{errors.ran_out_missed:4}/{errors.ran_out:<2}"
        f"{errors.false_unfit:5}/{errors.ran:<4}"
    )


def report(title: str, runs: Sequence[Outcome], by: str) -> None:
    """Print the errors of runs by group, of all of them, and the mean over groups."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for run in runs:
        groups[getattr(run, by)].append(run)
    by_group = {name: errors_of(group) for name, group in sorted(groups.items())}
    print(f"\n{title}, by {by}\n{HEAD}")
    for name, errors in by_group.items():
        print(line(name, errors))
    print(line("all", errors_of(runs)))
    times = [errors for errors in by_group.values() if errors.times >= FEWEST_FIGURES]
    memories = [errors for errors in by_group.values() if errors.memories >= FEWEST_FIGURES]
    print(
        f"mean over groups of {FEWEST_FIGURES} and more: time median {_mean([e.time_median for e in times])}, 90th "
        f"percentile {_mean([e.time_p90 for e in times])} ({len(times)}); memory median "
        f"{_mean([e.memory_median for e in memories])}, 90th percentile "
        f"{_mean([e.memory_p90 for e in memories])} ({len(memories)})"
    )


def rows(runs: Sequence[Outcome]) -> None:
    """Print every run, the largest error of time or memory first."""
    for run in sorted(runs, key=_largest, reverse=True):
        time, seconds = run.measured.get("step_seconds"), run.step_seconds
        said = [f"{seconds:.4g} of {time:.4g} s ({seconds / time:.2f})"] if time and seconds else []
        said += [
            f"{name.removesuffix('_gib')} {run.memory[name]:.4g} of {run.measured[name]:.4g} GiB "
            f"({run.memory[name] / run.measured[name]:.2f})"
            for name in MEMORY
            if run.valid and run.measured.get(name)
        ]
        said += [*run.violations] + ["ran out of memory"] * run.ran_out + ["unfit"] * (run.valid and not run.fits)
        print(f"{run.key}: {', '.join(said)}")


def _largest(run: Outcome) -> float:
    """Of |log(predicted / measured)|; infinite where the run is refused."""
    if not run.valid:
        return math.inf
    pairs = [(run.memory[name], run.measured[name]) for name in MEMORY if run.measured.get(name)]
    if run.step_seconds and run.measured.get("step_seconds"):
        pairs.append((run.step_seconds, run.measured["step_seconds"]))
    return max((abs(math.log(predicted / measured)) for predicted, measured in pairs), default=0.0)


def _percent(value: float) -> str:
    return f"{'-':>7}" if math.isnan(value) else f"{100 * value:7.1f}"


def _two_places(value: float) -> str:
    return f"{'-':>6}" if math.isnan(value) else f"{value:6.2f}"


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1%}" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="RunRecords, one a line; left out: the published runs")
    parser.add_argument("--by", choices=BY, nargs="+", default=["source", "gpu", "framework"])
    parser.add_argument("--confidence", type=float, default=0.5, help="of memory, at which a run is called fitting")
    parser.add_argument("--rows", action="store_true", help="every run too, the largest error first")
    given = parser.parse_args()
    if given.runs:
        records = [json.loads(text) for path in given.runs for text in path.read_text().splitlines()]
        sections = {"measured runs": records}
    else:
        sections = {"unseen": published_runs(seen=False), "seen while fitting": published_runs(seen=True)}
    for title, records in sections.items():
        scored = outcomes(records, memory_confidence=given.confidence)
        for by in given.by:
            report(title, scored, by)
        if given.rows:
            rows(scored)


if __name__ == "__main__":
    main()
