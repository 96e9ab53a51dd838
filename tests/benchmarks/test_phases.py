"""The sampling profiler: what runs is found under its stage and its work, and the parts add up."""

from __future__ import annotations

from benchmarks.phases import Phases
from tests.search.problems import run, small_search


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_search_is_found_by_stage_and_work() -> None:
    phases = Phases()
    with phases.sampled():
        run(small_search())
    title, _, *lines, total = phases.table(1).splitlines()
    stages = cells(title)[1:-1]
    works = {cells(line)[0] for line in lines}
    assert {"lattice", "study"} <= set(stages)
    assert {"memory", "time", "Optuna"} <= works
    optuna = next(cells(line)[1:] for line in lines if cells(line)[0] == "Optuna")
    assert float(optuna[stages.index("study")]) == float(optuna[-1]) > 0
    columns = [sum(float(cells(line)[1 + place]) for line in lines) for place in range(len(stages) + 1)]
    for rounded, whole in zip(columns, cells(total)[1:], strict=True):
        assert abs(rounded - float(whole)) <= len(lines) / 2 + 1
