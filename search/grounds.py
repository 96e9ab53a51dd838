"""What stands behind the first plan: measured runs or formulas alone, and which plans are too close to tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cost_models.coverage import coverage
from cost_models.problem import Problem
from cost_models.provenance import beyond_runs
from search.describe import describe

MEASURED: Final = ("learned", "calibrated")
TIME_NOTE: Final = "Step time: "
"""How `cost_models.provenance` begins what it says of the time."""
STEP_TIME_ERROR: Final = 0.084
"""Median error of step times over the published runs that no coefficient was fitted on (`make validate`; the table in
the README): plans that are closer than this are a tie."""

Answer = Mapping[str, Any]


def grounds(problem: Problem, plans: Sequence[Answer], values: Sequence[float]) -> list[str]:
    """Sentences about the first plan. `values`: what is minimised, of each plan, best first."""
    first = plans[0]
    words = [f"{_basis(problem, first)}."]
    if first["provenance"]["time"] not in MEASURED:
        words.append(_safest(problem, plans, values))
    if ties := sum(value <= values[0] * (1 + STEP_TIME_ERROR) for value in values[1:]):
        span = "1 and 2" if ties == 1 else f"1 to {ties + 1}"
        words.append(
            f"Plans {span} lie within {STEP_TIME_ERROR:.1%}, the median error of step times on runs that the "
            "model never saw: they tie, and only a run tells which is fastest."
        )
    elif len(values) > 1:
        words.append(
            f"The next plan is {values[1] / values[0] - 1:.1%} behind, more than the {STEP_TIME_ERROR:.1%} by which "
            "step times of unseen runs are missed at the median."
        )
    return words


def _basis(problem: Problem, plan: Answer) -> str:
    framework, basis = plan["strategy"]["framework"], plan["provenance"]["time"]
    if basis == "learned":
        return "Its step time is corrected by logged runs of this cluster and framework"
    runs = _runs(problem, framework)
    gpu = problem.cluster.gpu.name
    if basis == "calibrated":
        gaps = [note.removeprefix(TIME_NOTE).rstrip(".") for note in plan["provenance"]["notes"] if _is_gap(note)]
        return "; ".join([f"Its step time rests on {_counted(runs)} of {framework} on the silicon of {gpu}", *gaps])
    if problem.cluster.gpu.generation is None:
        return f"No measured run stands behind its step time: {gpu} is not in the catalog"
    if basis == "analytical":
        return f"No measured run of {framework} on the silicon of {gpu} stands behind its step time"
    why = "; ".join(beyond_runs(problem, framework, plan["strategy"]["precision"]))
    return f"Its step time is extrapolated: {why}"


def _safest(problem: Problem, plans: Sequence[Answer], values: Sequence[float]) -> str:
    row = next((row for row, plan in enumerate(plans) if plan["provenance"]["time"] in MEASURED), None)
    if row is None:
        return "No plan here rests on measured runs of its framework on this GPU: measure before a long run."
    plan = plans[row]
    framework = plan["strategy"]["framework"]
    behind = (
        "logged runs of this cluster"
        if plan["provenance"]["time"] == "learned"
        else f"{_counted(_runs(problem, framework))} of {framework} on this silicon"
    )
    return (
        f"The best plan that measured runs stand behind is plan {row + 1} ({describe(plan['strategy'])}): it costs "
        f"{values[row] / values[0] - 1:.1%} more and rests on {behind}."
    )


def _is_gap(note: str) -> bool:
    return note.startswith((f"{TIME_NOTE}none of these runs", f"{TIME_NOTE}the largest of these runs"))


def _runs(problem: Problem, framework: str) -> int:
    found = coverage().time_runs(problem.cluster.gpu.chip, framework)
    return 0 if found is None else found.runs


def _counted(runs: int) -> str:
    return f"{runs:,} public measured run{'s' if runs != 1 else ''}"
