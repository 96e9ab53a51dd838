"""What stands behind a figure: measured runs of this GPU and framework, or formulas alone."""

from __future__ import annotations

from typing import Final

from cost_models.problem import Problem
from cost_models.strategy import FRAMEWORKS

CALIBRATED_TIME: Final = frozenset(
    {
        ("volta", "megatron-lm"),
        ("volta", "deepspeed"),
        ("ampere", "megatron-lm"),
        ("ampere", "fsdp1"),
        ("hopper", "megatron-lm"),
        ("hopper", "nanotron"),
        ("hopper", "fsdp1"),
        ("hopper", "fsdp2"),
        ("blackwell", "megatron-lm"),
    }
)
"""GPU generations and frameworks with ten and more public measured step times among the runs that the coefficients of
`cost_models.time` were set on."""

SHARDED_WEIGHTS: Final = frozenset({("volta", "megatron-lm"), ("volta", "deepspeed")}) | frozenset(
    (generation, framework) for generation in ("ampere", "hopper") for framework in ("fsdp1", "fsdp2")
)
"""Of which some were runs with zero_stage 3."""
OLD_RUNS: Final = {
    "deepspeed": "Step time: every public measured run of deepspeed is from 2020 and 2021; its ZeRO-3 over several "
    "nodes is priced as slow as it was then, today's versions are likely faster.",
}
"""Frameworks whose runs are of software that has changed since."""


def time_provenance(problem: Problem, framework: int) -> str:
    """`calibrated`, `analytical`, or `extrapolated` for a GPU that the catalog does not know."""
    generation = problem.cluster.gpu.generation
    if generation is None:
        return "extrapolated"
    return "calibrated" if (generation, FRAMEWORKS[framework]) in CALIBRATED_TIME else "analytical"


def memory_provenance(problem: Problem) -> str:
    """Memory does not depend on the GPU's speed: formulas, for every GPU whose usable memory is known."""
    return "analytical" if problem.cluster.gpu.generation is not None else "extrapolated"


def provenance_notes(problem: Problem, framework: int, zero_stage: int) -> list[str]:
    """The same in words, with what those runs do not cover."""
    gpu, name = problem.cluster.gpu, FRAMEWORKS[framework]
    time = time_provenance(problem, framework)
    words = {
        "calibrated": f"Step time: coefficients set on public measured runs of {name} on {gpu.generation} GPUs.",
        "analytical": f"Step time: no public measured runs of {name} on {gpu.generation} GPUs stand behind it; the "
        "generation's coefficients are used.",
        "extrapolated": f"Step time and memory: {gpu.name} is not in the catalog and is priced from its datasheet.",
    }
    notes = [words[time]]
    if time == "calibrated" and zero_stage == 3 and (gpu.generation, name) not in SHARDED_WEIGHTS:
        notes.append("Step time: none of these runs used zero_stage 3; its traffic is priced as fsdp's is.")
    if name in OLD_RUNS:
        notes.append(OLD_RUNS[name])
    return [*notes, "Memory: analytical formulas; no learned correction is applied."]
