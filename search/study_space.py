"""What the study searches: the lattice's best layouts, each with the knobs that a lattice cannot hold.

A layout (cluster size, framework, degrees, ZeRO stage) is one integer in order of what it promises, so that near
numbers are alike; every other parameter is a knob that each layout understands in its own way. A knob that a layout
lacks is ignored and a value that it cannot take becomes the nearest one that it can, so that nearly all points are
valid: plain TPE over raw combinations with hard rules stays percent away from the optimum. How many layers are
checkpointed and how much is offloaded is no parameter: it is solved for every point (`search.fitting`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from optuna import create_trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from cost_models.frameworks import framework_named
from cost_models.layouts import balanced_layout
from cost_models.rules import recomputable_modules
from cost_models.strategy import COLUMNS
from search.axes import divisors, lattice_axes
from search.candidates import Candidates
from search.problem import SearchProblem

RELIEF_LAYERS: Final = 2
"""Layers that the study moves away from (or onto) the first and the last chunk at most."""
ENDS: Final = ("first_chunk_relief", "last_chunk_relief")
KNOBS: Final = (
    "micro_batch_size",
    "virtual_pipeline_size",
    "pipeline_schedule",
    "context_parallel_kind",
    "activation_checkpointing",
    "offload",
    "data_parallel_replicate_size",
    "sequence_parallel",
)
SOLVED: Final = ("checkpointed_layers", "offload_fraction")
DERIVED: Final = ("layers_per_stage", "recompute_modules")
"""Follow from the knobs, unless `space` names them."""
LEAST_MEMORY_SHARE: Final = 0.05
"""Of the capacity: where the front of step time against peak memory is looked for."""
KNOB_FREE_FIELDS: Final = tuple(name for name in COLUMNS if name not in {*KNOBS, *SOLVED, *DERIVED})
"""Fields that a layout fixes."""

Parameters = Mapping[str, Any]
Choice = TypeVar("Choice", str, bool)


@dataclass(frozen=True)
class Layout:
    """One point of the coarse space and what its knobs can be set to."""

    cluster: int
    fixed: Mapping[str, Any]
    """Strategy fields that the study leaves alone, in the words of the contract."""
    micro: tuple[int, ...]
    schedules: tuple[tuple[int, str], ...]
    context_kinds: tuple[str, ...]
    modes: tuple[str, ...]
    modules: tuple[str, ...]
    """What selective checkpointing may recompute; empty: no choice."""
    offloads: tuple[str, ...]
    replicates: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    uneven: bool
    """Stages may be relieved of layers."""


@dataclass(frozen=True)
class Proposal:
    """A decoded point: a strategy, as lean as it can be, and what is left to do once its defaults are known."""

    cluster: int
    strategy: dict[str, Any]
    relief: tuple[int, int]
    """Layers to move away from both ends."""
    memory_share: float = 1.0
    """Of the capacity: what its peak shall stay below."""


def layout_key(cluster: int, strategy: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two strategies points of the same layout."""
    return (cluster, *(strategy[name] for name in KNOB_FREE_FIELDS))


def make_layout(search: SearchProblem, cluster: int, strategy: Mapping[str, Any]) -> Layout:
    """The layout of a resolved strategy."""
    framework = framework_named(strategy["framework"])
    axes = lattice_axes(search, search.clusters[cluster], framework)
    data, pipeline, zero = (strategy[name] for name in ("data_parallel_size", "pipeline_parallel_size", "zero_stage"))
    batch = search.workload.global_batch_size // data
    own = (strategy["virtual_pipeline_size"], strategy["pipeline_schedule"])
    pairs = [own, *((v, name or own[1]) for v, name in axes.schedules if v * pipeline <= search.model.layers + 2)]
    named_replicates = search.space.get("data_parallel_replicate_size", divisors(data))
    replicated = framework.replicated_shards and zero > 0
    offloads = dict.fromkeys(kind for kind, _ in axes.offload)
    dropped = {*KNOBS, *SOLVED, *(name for name in DERIVED if name not in search.space)}
    return Layout(
        cluster=cluster,
        fixed={name: value for name, value in strategy.items() if name not in dropped},
        micro=tuple(b for b in axes.micro if batch % b == 0) or (strategy["micro_batch_size"],),
        schedules=tuple(dict.fromkeys(pairs)) if pipeline > 1 else (own,),
        context_kinds=axes.study_context_kinds
        if strategy["context_parallel_size"] > 1 and axes.study_context_kinds
        else (strategy["context_parallel_kind"],),
        modes=tuple(dict.fromkeys(mode for mode, _ in axes.checkpointing)),
        modules=() if "recompute_modules" in search.space else recomputable_modules(framework, search.model),
        offloads=tuple(k for k in offloads if k == "none" or zero in framework.offload_zero_stages.get(k, ()))
        or (strategy["offload"],),
        replicates=tuple(sorted(r for r in named_replicates if data % r == 0)) if replicated else (1,),
        sequence_parallel=(True, False)
        if strategy["sequence_parallel"] and "sequence_parallel" not in search.space
        else (strategy["sequence_parallel"],),
        uneven=framework.uneven_layers
        and not framework.splits_layers_by_cost
        and pipeline > 1
        and "layers_per_stage" not in search.space,
    )


@dataclass(frozen=True)
class StudySpace:
    """All layouts of a study, and the parameters that span them."""

    search: SearchProblem
    layouts: tuple[Layout, ...]

    @cached_property
    def micro(self) -> tuple[int, ...]:
        """Micro-batch sizes of any layout, ascending."""
        return tuple(sorted({b for layout in self.layouts for b in layout.micro}))

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """What any layout may recompute selectively."""
        selective = (layout for layout in self.layouts if "selective" in layout.modes)
        return tuple(dict.fromkeys(module for layout in selective for module in layout.modules))

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The parameters; a knob without a choice is none."""
        schedules = sorted({_schedule_name(pair) for layout in self.layouts for pair in layout.schedules})
        kinds = tuple(dict.fromkeys(kind for layout in self.layouts for kind in layout.context_kinds))
        modes = tuple(dict.fromkeys(mode for layout in self.layouts for mode in layout.modes))
        offloads = tuple(dict.fromkeys(kind for layout in self.layouts for kind in layout.offloads))
        shard_groups = max(len(layout.replicates) for layout in self.layouts)
        ends = RELIEF_LAYERS if any(layout.uneven for layout in self.layouts) else 0
        found: dict[str, BaseDistribution] = {
            "layout": IntDistribution(0, len(self.layouts) - 1),
            "micro_batch": IntDistribution(0, len(self.micro) - 1),
            "schedule": CategoricalDistribution(schedules),
            "context_kind": CategoricalDistribution(kinds),
            "checkpointing": CategoricalDistribution(modes),
            "offload": CategoricalDistribution(offloads),
            "shard_group": IntDistribution(0, shard_groups - 1),
            "sequence_parallel": CategoricalDistribution(
                tuple(sorted({on for layout in self.layouts for on in layout.sequence_parallel}, reverse=True))
            ),
            "balanced_layers": CategoricalDistribution((False, True) if ends else (False,)),
            **{name: IntDistribution(-ends, ends) for name in ENDS},
        }
        for module in self.modules:
            found[_recompute(module)] = CategoricalDistribution((False, True))
        if self.search.objective == "pareto":
            found["memory_share"] = FloatDistribution(LEAST_MEMORY_SHARE, 1.0)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def understands(self, parameters: Parameters) -> bool:
        """Whether a point is one of this space; one that an earlier version stored may not be."""
        try:
            create_trial(params=dict(parameters), distributions=self.distributions, value=0.0)
        except ValueError:
            return False
        return True

    def decode(self, parameters: Parameters) -> Proposal:
        """The strategy that a point stands for."""
        layout = self.layouts[parameters.get("layout", 0)]
        virtual, schedule = _nearest_schedule(parameters.get("schedule"), layout.schedules)
        mode = _choice(parameters.get("checkpointing"), layout.modes)
        shard_group = min(parameters.get("shard_group", 0), len(layout.replicates) - 1)
        strategy = {
            **layout.fixed,
            "micro_batch_size": _nearest_ratio(self.micro[parameters.get("micro_batch", 0)], layout.micro),
            "virtual_pipeline_size": virtual,
            "pipeline_schedule": schedule,
            "context_parallel_kind": _choice(parameters.get("context_kind"), layout.context_kinds),
            "data_parallel_replicate_size": layout.replicates[shard_group],
            "sequence_parallel": _choice(parameters.get("sequence_parallel"), layout.sequence_parallel),
            "activation_checkpointing": mode,
            "offload": _choice(parameters.get("offload"), layout.offloads),
        }
        if layout.uneven and parameters.get("balanced_layers"):
            strategy["layers_per_stage"] = self._balanced(strategy)
        if mode == "selective" and layout.modules:
            chosen = [module for module in layout.modules if parameters.get(_recompute(module))]
            strategy["recompute_modules"] = chosen or None
        first, last = (parameters.get(name, 0) for name in ENDS)
        return Proposal(
            layout.cluster, strategy, (first, last) if layout.uneven else (0, 0), parameters.get("memory_share", 1.0)
        )

    def encode(self, cluster: int, strategy: Mapping[str, Any]) -> dict[str, Any]:
        """The point nearest to a strategy of one of the layouts."""
        number = self._numbers[layout_key(cluster, strategy)]
        layout = self.layouts[number]
        own = (strategy["virtual_pipeline_size"], strategy["pipeline_schedule"])
        micro = _nearest_ratio(strategy["micro_batch_size"], self.micro)
        replicate = _nearest_ratio(strategy["data_parallel_replicate_size"], layout.replicates)
        point = {
            "layout": number,
            "micro_batch": self.micro.index(micro),
            "schedule": _schedule_name(_nearest_schedule(_schedule_name(own), layout.schedules)),
            "context_kind": _choice(strategy["context_parallel_kind"], layout.context_kinds),
            "checkpointing": _choice(strategy["activation_checkpointing"], layout.modes),
            "offload": _choice(strategy["offload"], layout.offloads),
            "shard_group": layout.replicates.index(replicate),
            "sequence_parallel": _choice(strategy["sequence_parallel"], layout.sequence_parallel),
            "balanced_layers": layout.uneven and tuple(strategy["layers_per_stage"]) == self._balanced(strategy),
            **dict.fromkeys(ENDS, 0),
            "memory_share": 1.0,
            **{_recompute(module): module in strategy["recompute_modules"] for module in self.modules},
        }
        return {name: value for name, value in point.items() if name in self.distributions}

    def _balanced(self, strategy: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Layers of each chunk; None where there are more chunks than layers."""
        pipeline, virtual = strategy["pipeline_parallel_size"], strategy["virtual_pipeline_size"]
        model = self.search.model
        return balanced_layout(model, pipeline, virtual) if pipeline * virtual <= model.layers else None

    def neighbours(self, point: Parameters) -> Iterator[dict[str, Any]]:
        """Points of the same layout with one thing changed: both ends of the pipeline are one, and so is what selective
        checkpointing recomputes."""
        if ENDS[0] in point:
            for steps in ((1, 1), (0, 1), (1, 0), (-1, -1), (0, -1), (-1, 0), (1, -1), (-1, 1)):
                moved = {name: point[name] + step for name, step in zip(ENDS, steps, strict=True)}
                if max(map(abs, moved.values())) <= RELIEF_LAYERS:
                    yield {**point, **moved}
        for module in self.modules:
            name = _recompute(module)
            # Of one mode alone there is no parameter.
            selective = {"checkpointing": "selective"} if "checkpointing" in point else {}
            chosen = point if selective.items() <= point.items() else {**point, **self._no_modules}
            yield {**chosen, **selective, name: not chosen[name]}
        others = ("layout", *ENDS, *self._no_modules)
        for name, distribution in self.distributions.items():
            if name not in others:
                yield from ({**point, name: value} for value in _beside(distribution, point[name]))

    @cached_property
    def _no_modules(self) -> dict[str, bool]:
        return {_recompute(module): False for module in self.modules}

    @cached_property
    def _numbers(self) -> dict[tuple[Any, ...], int]:
        return {layout_key(layout.cluster, layout.fixed): number for number, layout in enumerate(self.layouts)}


def _recompute(module: str) -> str:
    return f"recompute_{module}"


def _beside(distribution: BaseDistribution, value: Any) -> list[Any]:
    """Numbers a step either way, or every other choice."""
    if isinstance(distribution, CategoricalDistribution):
        return [choice for choice in distribution.choices if choice != value]
    if isinstance(distribution, IntDistribution):
        return [step for step in (value - 1, value + 1) if distribution.low <= step <= distribution.high]
    return []


def _schedule_name(pair: tuple[int, str]) -> str:
    return f"{pair[1]} x {pair[0]}"


def _nearest_schedule(name: str | None, pairs: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """The pair of that name; else one of the same schedule with the nearest number of chunks; else the first."""
    if name is None:
        return pairs[0]
    schedule, _, chunks = name.rpartition(" x ")
    same = [pair for pair in pairs if pair[1] == schedule]
    return min(same, key=lambda pair: (abs(pair[0] - int(chunks)), pair[0])) if same else pairs[0]


def _choice(value: Choice | None, options: Sequence[Choice]) -> Choice:
    return value if value is not None and value in options else options[0]


def _nearest_ratio(value: int, options: Sequence[int]) -> int:
    return min(options, key=lambda option: (abs(math.log(option / value)), option))


def relieved(layers: Sequence[int], first: int, last: int, *, pipeline: int, head: float) -> tuple[int, ...]:
    """Layers of every chunk after moving some away from the first and the last one to those between whose pipeline rank
    has least to do; `head`: what the last rank has to do besides, in layers.

    Unchanged where an end has not so many, or a chunk between would be left without a layer.
    """
    result = list(layers)
    if len(result) == 2:
        first, last = first - last, last - first
    result[0] -= first
    result[-1] -= last
    middle = range(1, len(result) - 1)
    moved = first + last
    for _ in range(abs(moved) if middle else 0):
        loads = [sum(result[rank::pipeline]) + head * (rank == pipeline - 1) for rank in range(pipeline)]
        if moved > 0:
            result[min(middle, key=lambda chunk: (loads[chunk % pipeline], result[chunk], chunk))] += 1
        else:
            result[max(middle, key=lambda chunk: (loads[chunk % pipeline], result[chunk], chunk))] -= 1
    kept = sum(result) == sum(layers) and min(result[0], result[-1]) >= 0 and min(result[1:-1], default=1) >= 1
    return tuple(result) if kept else tuple(layers)


def study_layouts(search: SearchProblem, candidates: Candidates) -> tuple[Layout, ...]:
    """The layouts of candidates that differ in `KNOB_FREE_FIELDS`."""
    return tuple(
        make_layout(search, int(candidates.cluster[row]), candidates.table.row(row)) for row in range(len(candidates))
    )
