"""Fit the coefficients of the time model to measured runs, and report the errors by family.

usage: python -m benchmarks.fit_time RUNS.jsonl [--rounds 3] [--only kernels ...] [--without nanotron] [--write]

Coordinate search on the mean over families of the mean |log(predicted / measured)|, each run's part capped so that
outliers of noisy sources do not lead. Only values that runs speak about are moved, inside physical bounds; no value
belongs to one model, run or source. `--write` puts the result into cost_models/time/coefficients.toml.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured_runs import RunGroup, load_groups
from cost_models.time import estimate_time
from cost_models.time.coefficients import Coefficients, coefficients_from

TOML = Path(__file__).parent.parent / "cost_models" / "time" / "coefficients.toml"
CAP = 0.7
"""Of |log ratio|: twice as slow or fast as predicted is as wrong as it gets."""
STEPS = (1.25, 1.08, 1.03)
MOST_GROUPS = 60
"""Of one family while fitting: spread evenly, so that a dense sweep costs no more than a paper's table."""
# Upper bounds of `gemm` also keep plans that fit below 65 % of the peak, which no public run exceeds.
BOUNDS: dict[str, tuple[float, float]] = {
    "kernels.operator_seconds": (4e-6, 6e-5),
    "kernels.kernel_gap_seconds": (1e-6, 5e-6),
    "kernels.memory_efficiency": (0.6, 0.88),
    "kernels.gemm_depth": (16, 512),
    "kernels.head_dim_depth": (16, 128),
    "kernels.attention_depth": (32, 400),
    "links.base_seconds": (5e-6, 6e-5),
    "links.intra_hop_seconds": (5e-7, 5e-6),
    "links.inter_hop_seconds": (3e-6, 3e-5),
    "links.half_bytes": (2e5, 4e6),
    "links.efa_half_bytes": (1e6, 4e7),
    "links.intra_efficiency": (0.5, 0.9),
    "links.inter_efficiency": (0.75, 0.95),
    "links.inter_decline": (0.01, 0.3),
    "generation.volta.gemm": (0.4, 0.9),
    "generation.ampere.gemm": (0.5, 0.77),
    "generation.hopper.gemm": (0.45, 0.69),
    "generation.blackwell.gemm": (0.4, 0.85),
    "generation.hopper.gemm_fp8": (0.3, 0.68),
    "generation.blackwell.gemm_fp8": (0.3, 0.75),
    "generation.ampere.flash_forward": (0.45, 0.75),
    "generation.ampere.flash_backward": (0.25, 0.65),
    "generation.hopper.flash_forward": (0.42, 0.75),
    "generation.hopper.flash_backward": (0.2, 0.65),
    "generation.hopper.plain_flash": (0.4, 1.0),
    "generation.blackwell.flash_forward": (0.4, 0.75),
    "generation.blackwell.flash_backward": (0.2, 0.65),
    "framework.megatron-lm.data_parallel_overlap": (0.0, 1.0),
    "framework.megatron-lm.hidden_tensor_traffic": (0.0, 1.0),
    "framework.megatron-lm.step_seconds": (1e-3, 5e-2),
    "framework.deepspeed.gather_bandwidth": (0.1, 1.0),
    "framework.deepspeed.data_parallel_overlap": (0.5, 1.0),
    "framework.deepspeed.operator_overhead": (0.5, 4.0),
    "framework.fsdp1.data_parallel_overlap": (0.0, 1.0),
    "framework.fsdp1.operator_overhead": (0.3, 3.0),
    "framework.fsdp2.data_parallel_overlap": (0.0, 1.0),
    "framework.fsdp2.operator_overhead": (0.3, 3.0),
    "framework.nanotron.data_parallel_overlap": (0.0, 1.0),
    "framework.nanotron.operator_overhead": (0.3, 4.0),
    "framework.nanotron.piped_tensor_seconds": (1e-5, 5e-3),
    "framework.nanotron.step_seconds": (1e-3, 1e-1),
}


@dataclass(frozen=True)
class Families:
    """Groups of runs by family."""

    groups: dict[str, list[RunGroup]]

    @classmethod
    def of(cls, groups: Sequence[RunGroup]) -> Families:
        by_family: dict[str, list[RunGroup]] = defaultdict(list)
        for group in groups:
            by_family[group.family].append(group)
        return cls(dict(by_family))

    def thinned(self) -> Families:
        def spread(groups: list[RunGroup]) -> list[RunGroup]:
            return [groups[i] for i in np.unique(np.linspace(0, len(groups) - 1, MOST_GROUPS).astype(int))]

        return Families({name: spread(groups) for name, groups in self.groups.items()})

    def log_ratios(self, coefficients: Coefficients) -> dict[str, np.ndarray[Any, Any]]:
        return {
            name: np.concatenate([log_ratio(group, coefficients) for group in groups])
            for name, groups in self.groups.items()
        }


def log_ratio(group: RunGroup, coefficients: Coefficients) -> np.ndarray[Any, Any]:
    """log(predicted / measured) of each run of a group."""
    estimate = estimate_time(group.problem, group.table, group.stages, coefficients)
    ratio: np.ndarray[Any, Any] = np.log(estimate.step_seconds / group.step_seconds)
    return ratio


def loss(families: Families, document: dict[str, Any]) -> float:
    ratios = families.log_ratios(coefficients_from(document))
    return float(np.mean([np.minimum(np.abs(values), CAP).mean() for values in ratios.values()]))


def read(document: dict[str, Any], path: str) -> float:
    *sections, name = path.split(".")
    for section in sections:
        document = document[section]
    return float(document[name])


def replaced(document: dict[str, Any], path: str, value: float) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return document | {head: replaced(document[head], rest, value) if rest else value}


def search(families: Families, document: dict[str, Any], paths: Sequence[str], rounds: int) -> dict[str, Any]:
    """Coordinate search with shrinking steps."""
    best = loss(families, document)
    for index in range(rounds):
        step = STEPS[min(index, len(STEPS) - 1)]
        for path in paths:
            low, high = BOUNDS[path]
            for factor in (step, 1 / step):
                while True:
                    here = read(document, path)
                    there = float(np.clip(here * factor, low, high))
                    if there == here:
                        break
                    trial = replaced(document, path, there)
                    found = loss(families, trial)
                    if found >= best - 1e-5:
                        break
                    document, best = trial, found
        print(f"round {index + 1}: {best:.4f}", flush=True)
    return document


def report(families: Families, coefficients: Coefficients) -> None:
    print(f"{'family':22}{'runs':>6}{'median':>8}{'mean':>8}{'p90':>8}{'bias':>7}")
    medians = []
    for name, logs in sorted(families.log_ratios(coefficients).items()):
        errors = np.abs(np.exp(logs) - 1)
        medians.append(float(np.median(errors)))
        print(
            f"{name:22}{len(logs):6}{medians[-1]:8.1%}{errors.mean():8.1%}{np.quantile(errors, 0.9):8.1%}"
            f"{np.exp(np.median(logs)):7.2f}"
        )
    print(f"mean of the families' medians {np.mean(medians):.1%}")


def write(document: dict[str, Any], fitted_on: str) -> None:
    """New values into the TOML, line by line, so that comments stay."""
    section, lines = "", []
    for line in TOML.read_text().splitlines():
        if header := re.fullmatch(r"\[(.+)\]", line):
            section = header[1]
        entry = re.match(r"(\w+) = ([0-9.e+-]+)(\s*#.*)?$", line)
        path = f"{section}.{entry[1]}" if entry else ""
        if entry and path in BOUNDS:
            line = f"{entry[1]} = {read(document, path):.3g}"
            line = f"{line:<32}{entry[3].strip()}" if entry[3] else line
        elif line.startswith("fitted_on"):
            line = f'fitted_on = "{fitted_on}"'
        lines.append(line)
    TOML.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="0: only report")
    parser.add_argument("--only", nargs="*", default=[""], help="prefixes of the coefficients to move")
    parser.add_argument("--without", nargs="*", default=[], help="families that do not lead the search")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    document = tomllib.loads(TOML.read_text())
    families = Families.of(load_groups(given.runs))
    paths = [path for path in BOUNDS if path.startswith(tuple(given.only))]
    leading = Families({name: groups for name, groups in families.groups.items() if name not in given.without})
    document = search(leading.thinned(), document, paths, given.rounds)
    report(families, coefficients_from(document))
    if given.write:
        runs = sum(len(group.table) for groups in families.groups.values() for group in groups)
        write(document, f"{runs} public measured runs of the families {', '.join(sorted(families.groups))}")


if __name__ == "__main__":
    main()
