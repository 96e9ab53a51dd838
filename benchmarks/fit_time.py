"""Fit the coefficients of the time model to measured runs, and report the errors by family.

usage: python -m benchmarks.fit_time RUNS.jsonl [--rounds 8] [--write | --split | --cold [FAMILY ...]]

Gauss-Newton with reweighting on the mean over families of the mean |log(predicted / measured)|; runs that are off by
more than a factor of two do not lead. It always starts at the middle of the ranges of `benchmarks.fit_ranges`, whatever
is stored, so that the same runs give the same values, and a small prior leaves a value there that no run speaks about.
No value belongs to one model, run or source. `--write` puts them into cost_models/time/coefficients.toml, and what they
were fitted on into cost_models/coverage.toml.

Two kinds of errors on runs that a fit has not seen: `--split` fits on odd requests (by their place in the file), scores
the even ones, and swaps; then Table 5 of arXiv 2205.05198 without its rows, and the B200 runs with a third of theirs.
`--cold` fits anew without each family (or those named) and scores the one that was left out.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import coverage
from benchmarks.families import Column, Families, Record, predicted_seconds, report
from benchmarks.fit_ranges import RANGES
from benchmarks.measured_runs import PROBLEM, RunGroup, load_groups, request_text
from cost_models.strategy import FRAMEWORKS
from cost_models.time.coefficients import Coefficients, coefficients_from

TOML = Path(__file__).parent.parent / "cost_models" / "time" / "coefficients.toml"
CAP = 0.7
"""Of |log ratio|: twice as slow or fast as predicted is as wrong as it gets."""
SMALL = 0.02
"""Errors below this are as good as none: no run is measured better."""
PRIOR = 0.002
"""Loss of a value at the end of its range: it must lower the mean error by a thousandth to go there."""
DIFFERENCE = 0.02
"""Of a range, for derivatives."""
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.03)
GAIN = 1e-4
"""A round that gains less is the last."""


def log_ratio(group: RunGroup, coefficients: Coefficients) -> Column:
    """log(predicted / measured) of each run of a group."""
    ratio: Column = np.log(predicted_seconds(group, coefficients) / group.step_seconds)
    return ratio


def replaced(document: dict[str, Any], path: str, value: float) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return document | {head: replaced(document[head], rest, value) if rest else value}


def placed(document: dict[str, Any], positions: Column) -> dict[str, Any]:
    """The document with every value at its position in its range."""
    for (path, bounds), position in zip(RANGES.items(), positions, strict=True):
        document = replaced(document, path, bounds.at(float(position)))
    return document


def concerns(path: str, group: RunGroup) -> bool:
    """Whether a coefficient can change a group's figures."""
    section, name = path.split(".")[:2]
    if section == "generation":
        return group.problem.cluster.gpu.generation == name
    if section == "framework":
        return bool((group.table.framework == FRAMEWORKS.index(name)).any())
    return True


class Fit:
    """Positions of all coefficients in their ranges, moved together."""

    def __init__(self, families: Families, document: dict[str, Any]) -> None:
        self.groups, self.shares = families.all_groups, np.concatenate(families.shares)
        self.document = document

    def ratios(self, positions: Column, known: list[Column] | None = None, path: str | None = None) -> list[Column]:
        """By group; only those that `path` concerns are worked out again."""
        coefficients = coefficients_from(placed(self.document, positions))
        return [
            known[index] if known and path and not concerns(path, group) else log_ratio(group, coefficients)
            for index, group in enumerate(self.groups)
        ]

    def loss(self, positions: Column, ratios: list[Column]) -> float:
        errors = np.minimum(np.hypot(np.concatenate(ratios), SMALL), CAP)
        return float((self.shares * errors).sum() + PRIOR * ((2 * positions - 1) ** 2).sum() / 2)

    def slopes(self, positions: Column, ratios: list[Column]) -> Column:
        columns = []
        for index, path in enumerate(RANGES):
            step = DIFFERENCE if positions[index] < 0.5 else -DIFFERENCE
            moved = positions.copy()
            moved[index] += step
            there = self.ratios(moved, ratios, path)
            columns.append((np.concatenate(there) - np.concatenate(ratios)) / step)
        return np.stack(columns, axis=1)

    def direction(self, positions: Column, ratios: list[Column]) -> Column:
        """Gauss-Newton step of the reweighted squares; values that would leave their ranges stay at the end."""
        errors, slopes = np.concatenate(ratios), self.slopes(positions, ratios)
        sizes = np.hypot(errors, SMALL)
        weights = np.where(sizes < CAP, self.shares / sizes, 0.0)
        gradient = slopes.T @ (weights * errors) + PRIOR * 2 * (2 * positions - 1)
        curvature = slopes.T @ (weights[:, None] * slopes) + PRIOR * 4 * np.eye(len(positions))
        free = np.ones(len(positions), dtype=np.bool_)
        while True:
            step = np.zeros(len(positions))
            step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
            out = free & ((positions + step < 0) & (positions <= 0) | (positions + step > 1) & (positions >= 1))
            if not out.any():
                return step
            free &= ~out

    def run(self, rounds: int) -> dict[str, Any]:
        positions = np.full(len(RANGES), 0.5)
        ratios = self.ratios(positions)
        best = self.loss(positions, ratios)
        for number in range(rounds):
            step = self.direction(positions, ratios)
            before = best
            for length in LENGTHS:
                there = np.clip(positions + length * step, 0.0, 1.0)
                found = self.ratios(there)
                loss = self.loss(there, found)
                if loss < best:
                    positions, ratios, best = there, found, loss
                    break
            print(f"round {number + 1}: {best:.4f}", flush=True)
            if before - best < GAIN:
                break
        return placed(self.document, positions)


def read(document: dict[str, Any], path: str) -> float:
    *sections, name = path.split(".")
    for section in sections:
        document = document[section]
    return float(document[name])


def write(document: dict[str, Any], fitted_on: str) -> None:
    """New values into the TOML, line by line, so that comments stay."""
    section, lines = "", []
    for line in TOML.read_text().splitlines():
        if header := re.fullmatch(r"\[(.+)\]", line):
            section = header[1]
        entry = re.match(r"(\w+) = ([0-9.e+-]+)(\s*#.*)?$", line)
        path = f"{section}.{entry[1]}" if entry else ""
        if entry and path in RANGES:
            line = f"{entry[1]} = {read(document, path):.3g}"
            line = f"{line:<32}{entry[3].strip()}" if entry[3] else line
        elif line.startswith("fitted_on"):
            line = f'fitted_on = "{fitted_on}"'
        lines.append(line)
    TOML.write_text("\n".join(lines) + "\n")


def request_numbers(path: Path) -> dict[str, int]:
    """By key of a run: how many different timed requests stand before its own in the file."""
    numbers: dict[str, int] = {}
    by_key = {}
    for run in map(json.loads, path.read_text().splitlines()):
        if run["measured"].get("step_seconds"):
            by_key[run["key"]] = numbers.setdefault(request_text(run, *PROBLEM, "strategy"), len(numbers))
    return by_key


def splits(families: Families, numbers: dict[str, int]) -> Iterator[tuple[str, Families, Families]]:
    """Title, runs to fit on, and runs to score."""

    def odd(record: Record) -> bool:
        return numbers[record["key"]] % 2 == 1

    def table_5(record: Record) -> bool:
        return bool(record["source"] == "actrecompute-tab5")

    b200 = [r["key"] for group in families.groups.get("simumax", []) for r in group.records]
    third = set(sorted(b200, key=numbers.__getitem__)[::3])
    rest = set(b200) - third
    odds, evens = families.where(odd), families.where(lambda record: not odd(record))
    yield "fitted on odd, scored on even", odds, evens
    yield "fitted on even, scored on odd", evens, odds
    yield "without Table 5", families.where(lambda record: not table_5(record)), families.where(table_5)
    yield (
        "with a third of the B200 runs",
        families.where(lambda r: r["key"] not in rest),
        families.where(lambda r: r["key"] in rest),
    )


def cold(families: Families, names: list[str]) -> Iterator[tuple[str, Families, Families]]:
    """The same of each family that is left out as a whole."""
    for name in names or sorted(families.groups):
        others = {other: groups for other, groups in families.groups.items() if other != name}
        yield "left out", Families(others), Families({name: families.groups[name]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rounds", type=int, default=8, help="0: only report what is stored")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--cold", nargs="*", metavar="FAMILY")
    given = parser.parse_args()
    document = tomllib.loads(TOML.read_text())
    families = Families.of(load_groups(given.runs))
    if given.split or given.cold is not None:
        parts = splits(families, request_numbers(given.runs)) if given.split else cold(families, given.cold)
        for title, fitted, scored in parts:
            report(title, scored, coefficients_from(Fit(fitted.thinned(), document).run(given.rounds)))
        return
    if given.rounds:
        document = Fit(families.thinned(), document).run(given.rounds)
        for path, bounds in RANGES.items():
            print(f"{path:46}{read(document, path):10.3g}  of {bounds.low:g} to {bounds.high:g}")
    report("family", families, coefficients_from(document))
    if given.write:
        runs = sum(len(group.table) for group in families.all_groups)
        write(document, f"{runs} public measured runs of the families {', '.join(sorted(families.groups))}")
        coverage.TOML.write_text(coverage.document(given.runs))


if __name__ == "__main__":
    main()
