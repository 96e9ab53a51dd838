"""Golden files: what is predicted for every published run, and the errors by source.

usage: python -m benchmarks.golden        (`make golden`)

Prints how predictions and errors differ from the files under tests/data, and rewrites them: a change of predictions is
part of the change that is reviewed. The tests compare and never write.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.errors import errors_of
from benchmarks.outcomes import MEMORY, Outcome, outcomes
from cost_models.published_runs import published_runs

DATA: Final = Path(__file__).parent.parent / "tests" / "data"
PREDICTIONS: Final = DATA / "golden_predictions.csv"
ERRORS: Final = DATA / "golden_errors.csv"
MEMORY_CONFIDENCE: Final = 0.5
FIGURES: Final = ("step_seconds", *MEMORY)
SAME: Final = 2e-5
"""Relative: figures have six digits, and the last may differ between machines."""
RATES: Final = ("time_median", "time_p90", "memory_median", "memory_p90")
COUNTS: Final = ("refused", "ran_out_missed", "false_unfit")

Table: TypeAlias = dict[str, dict[str, str]]
"""Rows of a CSV by their first column."""


def published_outcomes() -> list[Outcome]:
    """Of all published runs, seen and unseen."""
    return outcomes(published_runs(), memory_confidence=MEMORY_CONFIDENCE)


def predictions(runs: Iterable[Outcome]) -> Table:
    """What is said of each run; empty figures where it is called invalid."""
    return {run.key: _said(run) for run in runs}


def _said(run: Outcome) -> dict[str, str]:
    figures = {"step_seconds": run.step_seconds, **{name: run.memory.get(name) for name in MEMORY}}
    said = {name: "" if value is None else f"{value:.6g}" for name, value in figures.items()}
    return said | {"fits": str(run.fits).lower() if run.valid else "invalid: " + " ".join(run.violations)}


def errors(runs: Iterable[Outcome]) -> Table:
    """Errors by source."""
    by_source: dict[str, list[Outcome]] = defaultdict(list)
    for run in runs:
        by_source[run.source].append(run)
    return {source: _errors(group) for source, group in sorted(by_source.items())}


def _errors(group: Sequence[Outcome]) -> dict[str, str]:
    found = errors_of(group)
    rates = {name: getattr(found, name) for name in RATES}
    counts = {name: str(getattr(found, name)) for name in COUNTS}
    return {name: "" if math.isnan(rate) else f"{rate:.4f}" for name, rate in rates.items()} | counts


def changed_predictions(old: Table, new: Table) -> list[str]:
    """How predictions differ, the largest change first: `key: step_seconds 1.2 -> 1.3 (+8.3 %), ...`."""
    lines = [(math.inf, f"{key}: new") for key in new.keys() - old.keys()]
    lines += [(math.inf, f"{key}: gone") for key in old.keys() - new.keys()]
    for key in new.keys() & old.keys():
        changes = [_change(name, old[key][name], new[key][name]) for name in new[key]]
        if kept := [change for change in changes if change is not None]:
            lines.append((max(size for size, _ in kept), f"{key}: {', '.join(text for _, text in kept)}"))
    return [text for _, text in sorted(lines, key=lambda line: (-line[0], line[1]))]


def _change(name: str, old: str, new: str) -> tuple[float, str] | None:
    """Size of a change and its words; None where it is none."""
    if name not in FIGURES or not old or not new:
        return None if old == new else (math.inf, f"{name} {old or 'none'} -> {new or 'none'}")
    share = float(new) / float(old) - 1
    return None if abs(share) <= SAME else (abs(share), f"{name} {old} -> {new} ({share:+.2%})")


def risen_errors(old: Table, new: Table, *, tolerance: float) -> list[str]:
    """Sources whose errors rose by more than `tolerance` (of predicted / measured), or that have more runs misjudged.

    A source that is new has nothing to rise from.
    """
    return sorted(
        f"{source}: {rise}"
        for source in new.keys() & old.keys()
        for rise in [*_rates(old[source], new[source], tolerance), *_counts(old[source], new[source])]
    )


def _rates(old: Mapping[str, str], new: Mapping[str, str], tolerance: float) -> list[str]:
    told = {name: (float(old[name]), float(new[name])) for name in RATES if old[name] and new[name]}
    return [f"{name} {was:.1%} -> {now:.1%}" for name, (was, now) in told.items() if now > was + tolerance]


def _counts(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [f"{name} {old[name]} -> {new[name]}" for name in COUNTS if int(new[name]) > int(old[name])]


def read(path: Path) -> Table:
    """A golden file; nothing where there is none yet."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row.pop(next(iter(row))): row for row in csv.DictReader(file)}


def write(path: Path, first: str, table: Mapping[str, Mapping[str, str]]) -> None:
    """A golden file, its rows sorted by their first column, called `first`."""
    with path.open("w", newline="") as file:
        columns = list(next(iter(table.values())))
        writer = csv.DictWriter(file, [first, *columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows({first: key, **row} for key, row in sorted(table.items()))


def main() -> None:
    runs = published_outcomes()
    new_predictions, new_errors = predictions(runs), errors(runs)
    changed = changed_predictions(read(PREDICTIONS), new_predictions)
    print("\n".join(changed))
    print(f"{len(changed)} of {len(new_predictions)} predictions changed")
    old_errors = read(ERRORS)
    for source, row in new_errors.items():
        was = old_errors.get(source, {})
        moved = [
            f"{name} {was.get(name) or '-'} -> {value or '-'}"
            for name, value in row.items()
            if was.get(name, "") != value
        ]
        if moved:
            print(f"{source}: {', '.join(moved)}")
    write(PREDICTIONS, "key", new_predictions)
    write(ERRORS, "source", new_errors)


if __name__ == "__main__":
    main()
