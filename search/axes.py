"""The axes of the coarse lattice: which values each field takes for one framework on one cluster.

Legend: t tensor, c context, d data, p pipeline, v virtual pipeline size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.framework import Framework
from cost_models.strategy import ACTIVATION_CHECKPOINTING, OFFLOADS
from search.problem import SearchProblem
from search.startable import SEARCHED_FP8_RECIPES, exclusions_in_words

LARGEST_VIRTUAL: Final = 12
"""Chunks of a stage beyond which the bubble that is left, (p - 1) / (v m), is below that of the next knob."""
LEAST_CONTEXT_TOKENS: Final = 1024
"""Tokens of a sequence that a context rank keeps at least: below, ring steps are shorter than their messages."""
LEAST_TENSOR_REACH: Final = 8
"""Tensor sizes are tried up to a node or an NVLink domain, and to 8 on smaller hosts."""
CHECKPOINTED_SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""Of a stage's layers under full checkpointing; the study refines the count."""
OFFLOADED_SHARES: Final = (0.5, 1.0)
"""Of what a kind of offload can take off the GPU; the study refines the fraction."""
FORK_ONLY: Final = {"megatron-lm": ("zero-bubble",)}
"""Schedules that a framework has in a fork only (sail-sg's of Megatron-LM): searched where `space` names them."""
FORK_ONLY_OFFLOADS: Final = {"megatron-lm": ("optimizer-and-parameters",)}
"""The same of offloads: parameters leave the GPU under Megatron-DeepSpeed only."""
DOMINATED_SCHEDULES: Final = ("gpipe",)
"""The bubble of 1f1b with all micro-batches in flight (arXiv 2104.04473, section 2.2): where `space` names it."""
LATTICE_FIELDS: Final = frozenset(
    {
        "framework",
        "data_parallel_size",
        "data_parallel_replicate_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "virtual_pipeline_size",
        "pipeline_schedule",
        "context_parallel_size",
        "context_parallel_kind",
        "expert_parallel_size",
        "expert_tensor_parallel_size",
        "zero_stage",
        "micro_batch_size",
        "activation_checkpointing",
        "checkpointed_layers",
        "offload",
        "offload_fraction",
    }
)
"""Fields with an axis of their own; any other field that `space` names becomes one."""

Checkpointing = tuple[str, float | int | None]
"""A mode, and a share of the stage's layers (float) or a number of layers (int); None: all."""

Offload = tuple[str, float]
"""A kind and a fraction."""


@dataclass(frozen=True)
class Axes:
    """Values of every axis, in the words of the contract. None in a value: left to the framework's default."""

    framework: str
    tensor: tuple[int, ...]
    context: tuple[int, ...]
    context_kinds: tuple[str | None, ...]
    """The framework's default; `study_context_kinds` holds the others."""
    study_context_kinds: tuple[str, ...]
    pipeline: tuple[int, ...]
    schedules: tuple[tuple[int, str | None], ...]
    """Pairs of virtual pipeline size and schedule."""
    micro: tuple[int, ...]
    zero: tuple[int, ...]
    replicate: tuple[int, ...] | None
    """None: whole shards, and shards inside an NVLink domain where the framework can."""
    secondary: bool
    """Whether ZeRO-3 across NVLink domains is tried with a second copy of the weights in each (hpZ)."""
    balances: bool
    """Whether pipelines are tried with balanced layers beside the framework's default (`layer_layouts`)."""
    expert: tuple[int, ...]
    expert_tensor: tuple[int | None, ...]
    """0 stands for the tensor size."""
    checkpointing: tuple[Checkpointing, ...]
    """The leanest last."""
    offload: tuple[Offload, ...]
    """The leanest on the GPU last."""
    narrow_weight_stages: tuple[int, ...]
    """ZeRO stages at which weights are stored in 8 bit; elsewhere as the framework does by default.

    They come from the same fp32 masters and make the same products as 8-bit copies of 16-bit weights
    (--fp8-param-gather), never take more memory and travel in half the bytes: no second value is tried."""
    fp8_recipe: str | None
    """Searched with precision fp8; None: the framework's usual."""
    left_out: tuple[str, ...]
    """What could not be started, in words."""
    others: Mapping[str, tuple[Any, ...]]
    """Fields of `space` without an axis of their own."""

    @property
    def partly_checkpointed(self) -> tuple[int, ...]:
        """Numbers of the checkpointing choices that recompute a share of the layers."""
        return tuple(
            number for number, (_, value) in enumerate(self.checkpointing) if isinstance(value, float) and value < 1
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the axes leave out, in words."""
        if not self.narrow_weight_stages:
            return self.left_out
        stages = ", ".join(str(stage) for stage in self.narrow_weight_stages)
        return (
            *self.left_out,
            f"space.parameter_dtype left out: fp8 on {self.framework} with zero_stage {stages}, which makes the same "
            "products from the same fp32 masters in less memory",
        )

    @property
    def combinations(self) -> int:
        """All combinations of the axes, before any rule."""
        groups = (2 if self.replicate is None else len(self.replicate)) * (2 if self.secondary else 1)
        sizes = (
            *(self.tensor, self.context, self.context_kinds, self.pipeline, self.schedules, self.micro, self.zero),
            *(self.expert, self.expert_tensor, self.checkpointing, self.offload),
            *self.others.values(),
        )
        return groups * (2 if self.balances else 1) * math.prod(len(values) for values in sizes)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def lattice_axes(search: SearchProblem, cluster: Cluster, framework: Framework) -> Axes:
    """The axes of one framework on one cluster size, narrowed by `space`."""
    named = search.space
    model, workload = search.model, search.workload
    gpus = divisors(cluster.gpus)
    length = model.sequence_length or workload.sequence_length
    reach = max(cluster.gpus_per_node, cluster.nvlink_domain_gpus, LEAST_TENSOR_REACH)
    pipelines = tuple(p for p in gpus if p == 1 or (framework.pipeline_zero_stages and p <= model.layers))
    contexts = tuple(
        c for c in gpus if c == 1 or (framework.context_parallel_kinds and length >= c * LEAST_CONTEXT_TOKENS)
    )
    return Axes(
        framework=framework.name,
        tensor=_named(named, "tensor_parallel_size")
        or tuple(t for t in gpus if t == 1 or (framework.tensor_parallel and t <= reach)),
        context=_named(named, "context_parallel_size") or contexts,
        context_kinds=_named(named, "context_parallel_kind") or framework.context_parallel_kinds[:1] or (None,),
        study_context_kinds=_named(named, "context_parallel_kind") or framework.context_parallel_kinds,
        pipeline=_named(named, "pipeline_parallel_size") or pipelines,
        schedules=_schedules(search, framework, pipelines),
        micro=_named(named, "micro_batch_size") or divisors(workload.global_batch_size),
        zero=_named(named, "zero_stage") or framework.zero_stages,
        replicate=_named(named, "data_parallel_replicate_size") or (None if framework.replicated_shards else (1,)),
        secondary=framework.secondary_shards and "secondary_shard_size" not in named,
        balances=bool(framework.pipeline_zero_stages)
        and framework.uneven_layers
        and not framework.splits_layers_by_cost
        and "layers_per_stage" not in named,
        **_expert_axes(search, framework),
        checkpointing=_checkpointing(search, framework),
        offload=_offload(search, cluster, framework),
        narrow_weight_stages=_narrow_weight_stages(search, framework),
        fp8_recipe=None if "fp8_recipe" in named else SEARCHED_FP8_RECIPES.get(framework.name),
        left_out=(*exclusions_in_words(framework.name, search), *_not_tried(framework, named)),
        others={name: tuple(values) for name, values in named.items() if name not in LATTICE_FIELDS},
    )


def _not_tried(framework: Framework, space: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    """Values that are searched only where `space` names them, in words."""
    schedules = (*FORK_ONLY.get(framework.name, ()), *DOMINATED_SCHEDULES)
    offloads = (*FORK_ONLY_OFFLOADS.get(framework.name, ()), "activations")
    for name, possible, values in (
        ("pipeline_schedule", framework.pipeline_schedules, schedules),
        ("offload", framework.offloads, offloads),
    ):
        left = [value for value in values if value in possible]
        if left and name not in space:
            yield f"space.{name} left out: not searched on {framework.name}: {' and '.join(left)}"


def _named(space: Mapping[str, tuple[Any, ...]], name: str) -> tuple[Any, ...]:
    # A value named twice is one value.
    return tuple(dict.fromkeys(space.get(name, ())))


def _schedules(
    search: SearchProblem, framework: Framework, pipelines: tuple[int, ...]
) -> tuple[tuple[int, str | None], ...]:
    if not framework.pipeline_schedules and not {"virtual_pipeline_size", "pipeline_schedule"} & search.space.keys():
        return ((1, None),)
    forks = FORK_ONLY.get(framework.name, ())
    schedules = _named(search.space, "pipeline_schedule") or tuple(
        name for name in framework.pipeline_schedules if name not in forks and name not in DOMINATED_SCHEDULES
    )
    virtual = _named(search.space, "virtual_pipeline_size") or _virtual_sizes(search.model, pipelines)
    pairs: list[tuple[int, str | None]] = []
    for schedule in schedules:
        chunks = {"interleaved": [v for v in virtual if v > 1], "zero-bubble": [v for v in virtual if v <= 2]}
        pairs.extend((v, schedule) for v in chunks.get(schedule, [v for v in virtual if v == 1]))
    # Sizes and schedules that exclude each other: the rules say which one is broken.
    return tuple(pairs) or tuple((v, schedule) for v in virtual for schedule in schedules)


def _virtual_sizes(model: ModelArchitecture, pipelines: tuple[int, ...]) -> tuple[int, ...]:
    """1, 2, 4, 8, and the sizes that give every chunk the same (embedding and loss counted as layers or not)."""
    equal = {
        v
        for p in pipelines
        for v in range(2, LARGEST_VIRTUAL + 1)
        if p > 1 and p * v <= model.layers + 2 and 0 in (model.layers % (p * v), (model.layers + 2) % (p * v))
    }
    return tuple(sorted({1, 2, 4, 8} | equal))


def _narrow_weight_stages(search: SearchProblem, framework: Framework) -> tuple[int, ...]:
    precisions = search.space.get("precision", (search.workload.precision,))
    if set(precisions) != {"fp8"} or "parameter_dtype" in search.space:
        return ()
    # Frozen ones too: --fp8-param-gather asks for a distributed optimizer (megatron/training/arguments.py).
    return framework.requantised_zero_stages


def _expert_axes(search: SearchProblem, framework: Framework) -> dict[str, Any]:
    experts = [block.experts.experts for block in search.model.blocks if block.experts]
    possible = bool(experts) and framework.expert_parallel
    sizes = divisors(math.gcd(*experts)) if possible else (1,)
    return {
        "expert": _named(search.space, "expert_parallel_size") or sizes,
        "expert_tensor": _named(search.space, "expert_tensor_parallel_size")
        # Where a framework's experts do not follow the tensor size, splitting them is left to `space`.
        or ((1, 0) if possible and framework.expert_tensor_follows_tensor else (None,)),
    }


def _checkpointing(search: SearchProblem, framework: Framework) -> tuple[Checkpointing, ...]:
    modes = _named(search.space, "activation_checkpointing") or framework.activation_checkpointing
    able = [mode for mode in modes if mode in framework.activation_checkpointing] or list(modes)
    layers = sorted(_named(search.space, "checkpointed_layers"))
    pairs: list[Checkpointing] = []
    for mode in sorted(able, key=ACTIVATION_CHECKPOINTING.index):
        if mode == "none":
            pairs.append((mode, None))
        elif layers:
            pairs.extend((mode, count) for count in layers)
        else:
            in_part = mode == "full" and framework.checkpoints_in_part
            pairs.extend((mode, share) for share in (CHECKPOINTED_SHARES if in_part else (1.0,)))
    return tuple(pairs)


def _offload(search: SearchProblem, cluster: Cluster, framework: Framework) -> tuple[Offload, ...]:
    kinds = _named(search.space, "offload")
    if not kinds:
        # Activations are offloaded where the space says so; a host that is not known cannot be planned with.
        usable = {"optimizer", "optimizer-and-parameters"} if cluster.host else set()
        usable -= {*FORK_ONLY_OFFLOADS.get(framework.name, ())}
        usable |= {"nvme"} if cluster.host and cluster.host.nvme_bytes else set()
        kinds = ("none", *(kind for kind in framework.offloads if kind in usable))
    fractions = sorted(_named(search.space, "offload_fraction") or OFFLOADED_SHARES)

    def in_part(kind: str) -> bool:
        return any(framework.offloads_in_part(kind, stage) for stage in framework.zero_stages)

    # Nothing offloaded is the same at any fraction, and some can only be offloaded whole: one stands for all.
    return tuple(
        (kind, fraction)
        for kind in sorted(kinds, key=OFFLOADS.index)
        for fraction in (fractions if in_part(kind) else fractions[-1:])
    )
