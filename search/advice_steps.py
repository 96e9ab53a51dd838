"""From one strategy to another, one change at a time: what gives most memory for its time first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from cost_models.corrections import EstimateCorrections
from cost_models.estimate import score
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.strategy import StrategyTable, partial_columns
from cost_models.units import GIB, SECONDS_PER_HOUR
from search.neighbourhood import GROUPS, changed_groups
from search.observed_memory import Observation

NOTABLE_IDLE: Final = 0.1
"""Of reserved memory: fragmentation, worth a setting of the allocator."""
UNLIKE: Final = 2.0
"""Factor between what is observed and what is predicted, beyond which they are hardly of one job: predictions of unseen
jobs deviate by 0.12 in the logarithm, and this is six times that."""
WORDS: Final[Mapping[str, str]] = {
    "expandable_segments": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free pages serve any request",
    "gradient_as_bucket_view": "gradients that live in their reduction buckets",
    "micro_batch_size": "micro-batch",
    "activation_checkpointing": "activation checkpointing",
    "zero_stage": "ZeRO stage",
    "tensor_parallel_size": "tensor parallel size, the data parallel size with it",
    "offload": "offload to the host",
}


@dataclass(frozen=True)
class Step:
    """One change, or a remark where `field` is None."""

    code: str
    message: str
    field: str | None = None
    before: Any = None
    after: Any = None
    saved_bytes: float | None = None
    """Of what must fit; negative: takes more. None: this order of changes breaks a rule here."""
    step_seconds_change: float | None = None


Figures = dict[frozenset[str], tuple[float, float]]
"""What must fit in bytes and seconds of a step, by the groups that have changed; invalid ones are absent."""


def steps_between(
    problem: Problem,
    before: StrategyTable,
    after: StrategyTable,
    memory_confidence: float,
    corrections: EstimateCorrections,
) -> list[Step]:
    """Changes from one valid strategy to another: those that save memory first, by their time per GiB."""
    old, new = before.row(0), after.row(0)
    groups = changed_groups(old, new)
    figures = _figures(problem, old, new, groups, memory_confidence, corrections)
    done: frozenset[str] = frozenset()
    steps = []
    while len(done) < len(groups):
        left = [group for group in groups if group not in done]
        group = min(left, key=lambda name: _rank(figures, done, name))
        steps.append(_step(group, old, new, figures, done))
        done |= {group}
    return steps


def _figures(
    problem: Problem,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    groups: list[str],
    memory_confidence: float,
    corrections: EstimateCorrections,
) -> Figures:
    subsets = [frozenset(subset) for size in range(len(groups) + 1) for subset in combinations(groups, size)]
    rows = [{**old, **{field: new[field] for group in subset for field in GROUPS[group]}} for subset in subsets]
    table = resolve_strategies(problem, partial_columns(rows)).table
    valid = np.flatnonzero(violations(problem, table) == 0)
    scored = score(problem, table.take(valid), memory_confidence=memory_confidence, corrections=corrections)
    pairs = zip(scored.required_bytes.tolist(), scored.step_seconds.tolist(), strict=True)
    return {subsets[row]: figures for row, figures in zip(valid.tolist(), pairs, strict=True)}


def _change(figures: Figures, done: frozenset[str], group: str) -> tuple[float, float] | None:
    before, after = figures.get(done), figures.get(done | {group})
    return None if before is None or after is None else (before[0] - after[0], after[1] - before[1])


def _rank(figures: Figures, done: frozenset[str], group: str) -> tuple[int, float]:
    change = _change(figures, done, group)
    if change is None:
        return 2, 0.0
    saved, seconds = change
    return (0, seconds / saved) if saved > 0 else (1, seconds)


def _step(group: str, old: Mapping[str, Any], new: Mapping[str, Any], figures: Figures, done: frozenset[str]) -> Step:
    change = _change(figures, done, group)
    field = next((name for name in GROUPS[group] if old[name] != new[name]), group)
    before, after = (_shown(field, strategy) for strategy in (old, new))
    message = f"{WORDS[group]}: {before} to {after}" + (", " + _cost(*change) if change else "")
    return Step(group, message, field, old[field], new[field], *(change or (None, None)))


def _shown(field: str, strategy: Mapping[str, Any]) -> str:
    value = strategy[field]
    if field == "activation_checkpointing" and value == "full":
        return f"full, of {strategy['checkpointed_layers']} layers a stage"
    if field == "checkpointed_layers":
        return f"{value} layers a stage"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cost(saved: float, seconds: float) -> str:
    memory = f"{abs(saved) / GIB:.2f} GiB {'less' if saved >= 0 else 'more'}"
    return f"{memory}, {abs(seconds):.3g} s a step {'longer' if seconds > 0 else 'shorter'}"


def remarks(
    observation: Observation,
    current: Mapping[str, Any],
    proposed: Mapping[str, Any],
    *,
    safe: bool,
    changed: bool,
    gain: float,
    larger: tuple[int, float] | None,
    ratio: float,
) -> list[Step]:
    """What is to be known beside the changes.

    `ratio`: observed over predicted. `larger`: the largest safe micro-batch beyond what is proposed, and how much
    longer a step takes with it, as a share.
    """
    found = []
    memory = proposed["memory"]
    bound = f"up to {memory['required_upper_gib']:.1f} of {memory['capacity_gib']:.1f} GiB"
    if not safe:
        found.append(
            Step(
                "nothing_fits",
                f"no micro-batch, checkpointing or split of these GPUs is safe; the leanest needs {bound}: more GPUs, "
                "shorter sequences, an 8-bit optimizer or LoRA would help",
            )
        )
    elif not changed:
        found.append(Step("nothing_to_change", f"the job is safe ({bound}) and none of its neighbours is faster"))
    elif gain < 0:
        found.append(
            Step(
                "slower_but_safe",
                f"the job as it is runs out of memory with probability {current['memory']['oom_probability']:.2g}; "
                f"what is safe ({bound}) is {-gain:.1%} slower",
            )
        )
    if not 1 / UNLIKE <= ratio <= UNLIKE:
        found.append(
            Step(
                "observed_unlike_predicted",
                f"the observed memory is {ratio:.2g} times what is predicted of this strategy: check the unit, that "
                "model and strategy are the job's, and that the curve holds whole steps, before anything is changed",
            )
        )
    if larger is not None:
        found.append(
            Step(
                "larger_micro_batch_slower",
                f"up to micro-batch {larger[0]} would be safe too; a step would take {larger[1]:+.1%}",
            )
        )
    if observation.growth_bytes_per_s > 0:
        found.append(
            Step(
                "memory_still_grows",
                f"the observed peak still grows, by {observation.growth_bytes_per_s * SECONDS_PER_HOUR / GIB:.2f} GiB "
                "an hour at the end of the curve: a warm-up that was cut off, or a leak; the bound is wider for it",
            )
        )
    if observation.at_limit:
        found.append(
            Step(
                "observed_at_limit",
                "reserved or device memory has met the card's: the allocator gives back what it caches, and what it "
                "shows is the card rather than the job",
            )
        )
    if observation.idle_share > NOTABLE_IDLE:
        expandable = proposed["strategy"]["expandable_segments"]
        how = "" if expandable else "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True gives most of it back"
        found.append(
            Step("fragmentation", f"{observation.idle_share:.0%} of reserved memory is not allocated at its peak{how}")
        )
    return found
