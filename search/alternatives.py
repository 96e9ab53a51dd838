"""The nearest alternatives of a plan, one step in each direction, and what each would cost by a real estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np

from cost_models.codes import VIOLATIONS, decode
from cost_models.frameworks import framework_named
from cost_models.strategy import ACTIVATION_CHECKPOINTING
from cost_models.units import GIB
from search.candidates import Candidates
from search.evaluator import Evaluator
from search.space import allows
from search.startable import searched

FOLLOWING: Final = ("data_parallel_size", "layers_per_stage")
"""Fields that follow from the others; left to their defaults in an alternative."""
CHECKPOINTING_WORDS: Final = {"none": "no", "selective": "selective", "full": "full"}
ZERO_STAGES: Final = (0, 1, 2, 3)
DECIMALS: Final = 9
"""Of the figures that are written out, as in `cost_models.answer`."""


@dataclass(frozen=True)
class Alternative:
    """One step away from a plan."""

    words: str
    fields: tuple[str, ...]
    """That the step is about; others may follow."""
    strategy: Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """Of an alternative that breaks no rule."""

    step_seconds: float
    relative: float
    """Of the step time, over the plan's."""
    required_upper_gib: float
    fits: bool
    meets_deadline: bool


@dataclass(frozen=True)
class Priced:
    """An alternative with its estimate."""

    alternative: Alternative
    strategy: Mapping[str, Any]
    """Every field filled."""
    violations: tuple[str, ...]
    """Codes."""
    figures: Figures | None
    """None: it breaks a rule."""
    capacity_gib: float
    in_space: bool = True
    """Whether the request's `space` allows it."""
    changes_numerics: bool = False
    """It trains in other numbers than were asked for."""

    @property
    def sentence(self) -> str:
        """In words."""
        head = "Changing numerics" if self.changes_numerics else "Alternative"
        words, figures = f"{head}, {self.alternative.words}", self.figures
        if figures is None:
            return f"{words}: breaks {', '.join(self.violations)}."
        fits = "fits" if figures.fits else "does not fit"
        late = "" if figures.meets_deadline else ", misses the deadline"
        outside = "" if self.in_space else "; outside of `space`"
        return (
            f"{words}: {figures.step_seconds:.3g} s a step ({figures.relative * 100:+.1f} %), "
            f"needs up to {figures.required_upper_gib:.1f} of {self.capacity_gib:.1f} GiB, {fits}{late}{outside}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the answer."""
        figures = {field.name: None for field in fields(Figures)} if self.figures is None else asdict(self.figures)
        return {
            "change": self.alternative.words,
            "fields": {name: self.strategy[name] for name in self.alternative.fields},
            "strategy": dict(self.strategy),
            "valid": self.figures is not None,
            "violations": list(self.violations),
            **{name: round(value, DECIMALS) if isinstance(value, float) else value for name, value in figures.items()},
            "in_space": self.in_space,
            "changes_numerics": self.changes_numerics,
        }


def alternatives(strategy: Mapping[str, Any], *, experts: bool = False) -> list[Alternative]:
    """One step up and down in tensor, pipeline, context, expert (with `experts`) parallel size, micro-batch,
    checkpointing and ZeRO; some break a rule."""
    framework = framework_named(strategy["framework"])
    pipeline = strategy["pipeline_parallel_size"] > 1
    stages = framework.pipeline_zero_stages if pipeline else framework.zero_stages
    mode, zero_stage = strategy["activation_checkpointing"], strategy["zero_stage"]
    return [
        *_doublings(strategy, "tensor_parallel_size", "tensor parallel"),
        *_doublings(strategy, "pipeline_parallel_size", "pipeline parallel"),
        *_doublings(strategy, "context_parallel_size", "context parallel"),
        *(_doublings(strategy, "expert_parallel_size", "expert parallel") if experts else ()),
        *_doublings(strategy, "micro_batch_size", "micro-batch"),
        *(
            _step(
                strategy,
                f"{CHECKPOINTING_WORDS[other]} activation checkpointing",
                {"activation_checkpointing": other},
            )
            for other in _beside(ACTIVATION_CHECKPOINTING, framework.activation_checkpointing, mode)
        ),
        *(
            _step(strategy, f"ZeRO stage {stage} instead of {zero_stage}", {"zero_stage": stage})
            for stage in _beside(ZERO_STAGES, stages, zero_stage)
        ),
    ]


def _doublings(strategy: Mapping[str, Any], name: str, title: str) -> Iterator[Alternative]:
    value = strategy[name]
    for step in [value // 2] * (value % 2 == 0) + [value * 2]:
        yield _step(strategy, f"{title} {step} instead of {value}", {name: step})


def _beside(values: Sequence[Any], possible: Sequence[Any], value: Any) -> list[Any]:
    """The next possible value each way; where none is possible, the next, which breaks a rule."""
    position = values.index(value)
    found = []
    for way in (values[:position][::-1], values[position + 1 :]):
        found += [next((other for other in way if other in possible), way[0])] if way else []
    return found


def _step(strategy: Mapping[str, Any], words: str, changes: Mapping[str, Any]) -> Alternative:
    changed = {name: value for name, value in strategy.items() if name not in FOLLOWING} | dict(changes)
    if "activation_checkpointing" in changes:
        # What is recomputed, and of how many layers, are questions of the old mode.
        del changed["recompute_modules"], changed["checkpointed_layers"]
    if "pipeline_parallel_size" in changes:
        # The same share of a stage.
        layers = strategy["checkpointed_layers"] * strategy["pipeline_parallel_size"]
        changed["checkpointed_layers"] = math.ceil(layers / changed["pipeline_parallel_size"])
    if "tensor_parallel_size" in changes:
        del changed["sequence_parallel"]
        if strategy["expert_tensor_parallel_size"] > 1:
            # Follows the tensor size where experts are split at all.
            del changed["expert_tensor_parallel_size"]
    if "context_parallel_size" in changes and strategy["context_parallel_size"] == 1:
        del changed["context_parallel_kind"]
    if changes.keys() & {"tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"}:
        # Another number of data ranks: one group of shards, as without an opinion.
        del changed["data_parallel_replicate_size"], changed["secondary_shard_size"]
    if changed["pipeline_parallel_size"] == 1:
        del changed["virtual_pipeline_size"], changed["pipeline_schedule"]
    return Alternative(words, tuple(changes), changed)


def price_alternatives(
    evaluator: Evaluator, cluster: int, strategies: Sequence[Mapping[str, Any]]
) -> tuple[list[list[Priced]], Candidates]:
    """The alternatives of each strategy, the fastest first, those that break a rule last; and the valid ones that
    a search is about, as scored: one call of the cost models."""
    routed = any(block.experts is not None for block in evaluator.search.model.blocks)
    steps = [alternatives(strategy, experts=routed) for strategy in strategies]
    # Their defaults are not those of the plans.
    scored = Evaluator(evaluator.search).evaluate_strategies(
        cluster, [*strategies, *(step.strategy for ways in steps for step in ways)]
    )
    allowed = allows(evaluator.search.space, scored.table)
    capacity_gib = evaluator.search.clusters[cluster].capacity_bytes / GIB
    begin = len(strategies)
    result: list[list[Priced]] = []
    for number, ways in enumerate(steps):
        rows = np.arange(begin, begin + len(ways))
        begin += len(ways)
        # Figures of what breaks a rule are NaN, and NaN sorts last.
        ordered = rows[np.argsort(scored.step_seconds[rows], kind="stable")]
        own_seconds = float(scored.step_seconds[number])
        result.append(
            [
                replace(
                    price_row(ways[int(row - rows[0])], scored, int(row), own_seconds, capacity_gib),
                    in_space=bool(allowed[row]),
                )
                for row in ordered
            ]
        )
    own = searched(evaluator.search, cluster, scored.table)
    return result, scored.take(scored.valid & own & (np.arange(len(scored)) >= len(strategies)))


def price_row(
    alternative: Alternative, scored: Candidates, row: int, own_seconds: float, capacity_gib: float
) -> Priced:
    """An alternative that was scored as a row of candidates, of a plan that takes `own_seconds` a step."""
    figures = None
    if scored.valid[row]:
        seconds = float(scored.step_seconds[row])
        figures = Figures(
            step_seconds=seconds,
            relative=seconds / own_seconds - 1,
            required_upper_gib=float(scored.required_upper_bytes[row]) / GIB,
            fits=bool(scored.fits[row]),
            meets_deadline=bool(scored.in_time[row]),
        )
    strategy = scored.table.row(row)
    return Priced(
        alternative=alternative,
        # Where there are more chunks than layers nothing can be said of these.
        strategy={**strategy, "layers_per_stage": strategy["layers_per_stage"] or None},
        violations=tuple(decode(VIOLATIONS, int(scored.violations[row]))),
        figures=figures,
        capacity_gib=capacity_gib,
    )
