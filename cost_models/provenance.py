"""What stands behind a figure: measured runs of this GPU and framework, or formulas alone; and how far they reach.

`learned`: logged runs correct it (memory: or bound it). `calibrated`: measured runs of this silicon (memory: of this
generation) and framework stand behind it, and no answer is far from all of them. `analytical`: none do. `extrapolated`:
the GPU is unknown, or the kind of model, the precision or the scale is beyond every run that could speak about it. The
notes say what the runs were, and what was not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from cost_models.coverage import MeasuredRuns, coverage
from cost_models.model_kind import model_kind
from cost_models.problem import Problem
from cost_models.strategy import FRAMEWORKS, PRECISIONS

Basis = Literal["calibrated", "learned", "analytical", "extrapolated"]

FAR: Final = 4
"""Times the GPUs of a framework's largest run: two doublings on, what falls with every doubling has had room to."""
SIXTEEN_BIT: Final = ("bf16", "fp16")
"""Run at the same rates wherever both are supported: one stands for the other."""
RUN_CONDITIONS: Final = {
    "deepspeed": "Step time: every public measured run of deepspeed is from 2020 and 2021; its ZeRO-3 over several "
    "nodes is priced as slow as it was then, today's versions are likely faster.",
    "nanotron": "Step time: the public runs of nanotron were started by its script for several nodes, which turns on "
    "torch's checks of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL); tensor parallelism in pipelines over several "
    "nodes is priced with them and is faster without.",
}
"""What was particular to a framework's runs and need not be so for others."""
MEMORY_RULES: Final = {
    "deepspeed": "its ZeRO rules are validated against PyTorch under a fake process group",
}
"""What stands behind a framework's memory besides measured runs."""
NOT_CORRECTED: Final = "Memory: no learned correction is applied."

FROZEN_GRADIENTS: Final = {
    "fsdp1": "Memory: frozen weights have gradients, as where LitGPT flattens whole blocks. Under PEFT's "
    "fsdp_auto_wrap_policy, which transformers' Trainer sets, they have none, and each rank of a shard group keeps its "
    "share of them less.",
}
"""How frameworks are set up with LoRA differs, and no request says which way."""


@dataclass(frozen=True)
class Provenance:
    """The contract's `provenance` of one answer."""

    time: Basis
    memory: Basis
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Taught:
    """What logged runs say about one strategy."""

    version: int
    memory_basis: str | None
    """What the bound rests on; None: nothing was learned."""
    time_runs: int
    """Of this cluster and framework; 0: nothing was learned."""
    time_factor: float
    time_deviation: float
    """Standard deviation of the factor's logarithm."""


def provenance(
    problem: Problem, framework: int, precision: int, zero_stage: int, taught: Taught | None = None
) -> Provenance:
    """What stands behind the figures of a strategy with these values."""
    found = _of_formulas(problem, framework, precision, zero_stage)
    return found if taught is None else _corrected(found, FRAMEWORKS[framework], taught)


def _of_formulas(problem: Problem, framework: int, precision: int, zero_stage: int) -> Provenance:
    name = FRAMEWORKS[framework]
    if problem.cluster.gpu.generation is None:
        gpu = problem.cluster.gpu.name
        note = f"Step time and memory: {gpu} is not in the catalog and is priced from its datasheet."
        return Provenance("extrapolated", "extrapolated", (note, *_conditions(name)))
    return Provenance(
        time_basis(problem, framework, precision),
        _memory_basis(problem, name),
        (
            *_time_notes(problem, name, PRECISIONS[precision], zero_stage),
            *_conditions(name),
            *_memory_notes(problem, name),
        ),
    )


def _corrected(found: Provenance, framework: str, taught: Taught) -> Provenance:
    notes = [note for note in found.notes if note != NOT_CORRECTED]
    version = f"version {taught.version} of what was learned from measured runs"
    if taught.memory_basis is None:
        notes.append(f"Memory: {version} says nothing about it; no correction is applied.")
    else:
        notes.append(f"Memory: corrected by {version}; its bound rests on {taught.memory_basis}.")
        found = replace(found, memory="learned")
    if taught.time_runs == 0:
        notes.append(f"Step time: {version} knows no run of {framework} on this cluster; no correction is applied.")
    else:
        runs = f"{taught.time_runs:,} run{'s' if taught.time_runs > 1 else ''}"
        notes.append(
            f"Step time: multiplied by {taught.time_factor:.3f} (standard deviation {taught.time_deviation:.1%}), as "
            f"{version} takes it from {runs} of {framework} on this cluster."
        )
        found = replace(found, time="learned")
    return replace(found, notes=tuple(notes))


def time_basis(problem: Problem, framework: int, precision: int) -> Basis:
    """Of the formulas' step time of a strategy with these values."""
    gpu, name = problem.cluster.gpu, FRAMEWORKS[framework]
    if gpu.generation is None:
        return "extrapolated"
    if coverage().time_runs(gpu.chip, name) is None:
        return "analytical"
    return "extrapolated" if beyond_runs(problem, name, PRECISIONS[precision]) else "calibrated"


def beyond_runs(problem: Problem, framework: str, precision: str) -> list[str]:
    """What no run of this framework (precision: of this generation) is near to, in words."""
    own = [runs for runs in coverage().time if runs.framework == framework]
    generation = [runs for runs in coverage().time if runs.generation == problem.cluster.gpu.generation]
    kind, gpus, most = _kind(problem), problem.cluster.gpus, max(runs.most_gpus for runs in own)
    found = []
    if not any(kind in runs.kinds for runs in own):
        found.append(f"no public measured run of {framework} is of kind {kind}")
    if not any(_counts(runs, precision) for runs in generation):
        found.append(f"no public measured run on {problem.cluster.gpu.generation} GPUs is in {precision}")
    if gpus > FAR * most:
        found.append(f"{gpus:,} GPUs are more than {FAR} times the {most:,} of the largest measured run of {framework}")
    return found


def _time_notes(problem: Problem, framework: str, precision: str, zero_stage: int) -> list[str]:
    gpu = problem.cluster.gpu
    runs = coverage().time_runs(gpu.chip, framework)
    if runs is None:
        here = sum(other.runs for other in coverage().time if other.chip == gpu.chip)
        rests = (
            f"the efficiencies are those that {here:,} runs of other frameworks on this silicon gave"
            if here
            else f"the efficiencies of {gpu.generation} GPUs are taken from others or assumed"
        )
        return [f"Step time: no public measured run of {framework} on {_silicon(problem)} stands behind it; {rests}."]
    beyond = beyond_runs(problem, framework, precision)
    return [
        f"Step time: {runs.runs:,} public measured runs of {framework} on {_silicon(problem)} stand behind it: "
        f"{_listed(runs.kinds)}; {_listed(runs.precisions)}; {_gpus([runs])}.",
        *(f"Step time: {words}; it is extrapolated." for words in beyond),
        *(f"Step time: {words}" for words in _gaps(problem, runs, precision, zero_stage) if not beyond),
    ]


def _gaps(problem: Problem, runs: MeasuredRuns, precision: str, zero_stage: int) -> list[str]:
    """What is not among the runs of this silicon and framework, but among others."""
    kind, gaps = _kind(problem), []
    if kind not in runs.kinds:
        gaps.append(f"none of these runs is of kind {kind}; {runs.framework} ran such models on other GPUs.")
    if not _counts(runs, precision):
        gaps.append(f"none of these runs is in {precision}; other runs on {runs.generation} GPUs are.")
    if problem.cluster.gpus > runs.most_gpus:
        gaps.append(f"the largest of these runs had {runs.most_gpus:,} GPUs; {problem.cluster.gpus:,} are beyond it.")
    if zero_stage == 3 and "3" not in runs.zero_stages:
        gaps.append("none of these runs used zero_stage 3; its traffic is priced as fsdp's is.")
    return gaps


def _memory_basis(problem: Problem, framework: str) -> Basis:
    runs = coverage().memory_runs(problem.cluster.gpu.generation, framework)
    return "calibrated" if runs and _measured_kind(problem, framework) else "analytical"


def _memory_notes(problem: Problem, framework: str) -> list[str]:
    gpu = problem.cluster.gpu
    runs = coverage().memory_runs(gpu.generation, framework)
    rules = f"; {MEMORY_RULES[framework]}" if framework in MEMORY_RULES else ""
    if runs:
        kinds: dict[str, int] = {}
        for one in runs:
            kinds |= {kind: kinds.get(kind, 0) + count for kind, count in one.kinds.items()}
        notes = [
            f"Memory: formulas, checked against {sum(kinds.values()):,} public measured runs of {framework} on "
            f"{gpu.generation} GPUs: {_listed(kinds)}; {_gpus(runs)}{rules}."
        ]
        if _kind(problem) not in kinds:
            elsewhere = "; others of this framework are" if _measured_kind(problem, framework) else ""
            notes.append(f"Memory: none of these runs is of kind {_kind(problem)}{elsewhere}.")
    else:
        notes = [f"Memory: formulas; no public measured peak of {framework} on {gpu.generation} GPUs{rules}."]
    tuning = problem.workload.fine_tuning
    if tuning is not None and tuning.method == "lora" and framework in FROZEN_GRADIENTS:
        notes.append(FROZEN_GRADIENTS[framework])
    return [*notes, NOT_CORRECTED]


def _measured_kind(problem: Problem, framework: str) -> bool:
    """Whether some run of the framework with measured memory, on any GPU, is of the problem's kind."""
    return any(_kind(problem) in runs.kinds for runs in coverage().memory if runs.framework == framework)


def _kind(problem: Problem) -> str:
    return model_kind(problem.model, problem.workload)


def _counts(runs: MeasuredRuns, precision: str) -> bool:
    return any(name in runs.precisions for name in (SIXTEEN_BIT if precision in SIXTEEN_BIT else (precision,)))


def _silicon(problem: Problem) -> str:
    gpu = problem.cluster.gpu
    return f"the silicon of {gpu.name} ({gpu.chip})"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _gpus(runs: Iterable[MeasuredRuns]) -> str:
    least, most = min(one.least_gpus for one in runs), max(one.most_gpus for one in runs)
    return f"{least:,} to {most:,} GPUs" if most > least else f"{most:,} GPU{'s' if most > 1 else ''}"


def _conditions(framework: str) -> tuple[str, ...]:
    return (RUN_CONDITIONS[framework],) if framework in RUN_CONDITIONS else ()
