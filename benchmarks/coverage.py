"""Write cost_models/coverage.toml: which measured runs stand behind the figures.

usage: python -m benchmarks.coverage RUNS.jsonl [--check]

Run it on the runs that the coefficients are fitted on. `--check` only says whether the stored file is that of these
runs. GPUs that the catalog has no relative of are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.measured_runs import STEP_TIME, RunGroup, load_groups
from benchmarks.outcomes import MEMORY
from cost_models.model_kind import model_kind
from cost_models.strategy import FRAMEWORKS, PRECISIONS

TOML: Final = Path(__file__).parent.parent / "cost_models" / "coverage.toml"
HEADER: Final = """\
# Which public measured runs stand behind the figures. Written by `python -m benchmarks.coverage RUNS.jsonl`.
# time: runs with a step time, on which the coefficients were set; memory: runs with a measured peak.
# kinds, precisions, zero_stages: runs by each; gpus: the least and the most GPUs that one of them used.
"""


@dataclass
class Tally:
    """Runs of one framework on one silicon."""

    generation: str
    kinds: Counter[str] = field(default_factory=Counter)
    precisions: Counter[str] = field(default_factory=Counter)
    zero_stages: Counter[str] = field(default_factory=Counter)
    gpus: set[int] = field(default_factory=set)

    def toml(self, figure: str, chip: str, framework: str) -> str:
        """One entry of the file."""
        counts = {"kinds": self.kinds, "precisions": self.precisions, "zero_stages": self.zero_stages}
        lines = [f'chip = "{chip}"', f'generation = "{self.generation}"', f'framework = "{framework}"']
        lines.append(f"runs = {self.kinds.total()}")
        for name, counter in counts.items():
            inner = ", ".join(f"{key} = {counter[key]}" for key in sorted(counter))
            lines.append(f"{name} = {{ {inner} }}")
        lines.append(f"gpus = [{min(self.gpus)}, {max(self.gpus)}]")
        return f"\n[[{figure}]]\n" + "\n".join(lines) + "\n"


def tallies(groups: Sequence[RunGroup]) -> dict[tuple[str, str], Tally]:
    """By silicon and framework."""
    found: dict[tuple[str, str], Tally] = {}
    by_chip: dict[str, list[RunGroup]] = defaultdict(list)
    for group in groups:
        if (chip := group.problem.cluster.gpu.chip) is not None:
            by_chip[chip].append(group)
    for chip, same in by_chip.items():
        for group in same:
            kind, table = model_kind(group.problem.model, group.problem.workload), group.table
            columns = (table.framework, table.precision, table.zero_stage)
            for framework, precision, stage in zip(*(column.tolist() for column in columns), strict=True):
                key = (chip, FRAMEWORKS[framework])
                tally = found.setdefault(key, Tally(str(group.problem.cluster.gpu.generation)))
                tally.kinds[kind] += 1
                tally.precisions[PRECISIONS[precision]] += 1
                tally.zero_stages[str(stage)] += 1
                tally.gpus.add(group.problem.cluster.gpus)
    return found


def document(path: Path) -> str:
    """The file's text for these runs."""
    parts = [HEADER]
    for figure, names in (("time", STEP_TIME), ("memory", MEMORY)):
        found = tallies(load_groups(path, names))
        parts += [found[key].toml(figure, *key) for key in sorted(found)]
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the stored file differs")
    given = parser.parse_args()
    text = document(given.runs)
    if not given.check:
        TOML.write_text(text)
    elif TOML.read_text() != text:
        sys.exit(f"{TOML.name} is not that of {given.runs.name}")


if __name__ == "__main__":
    main()
