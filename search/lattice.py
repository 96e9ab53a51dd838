"""The coarse lattice: every way to lay a model out on all GPUs with the values of `axes`, as columns.

Factorisations that cannot work (degrees that do not multiply to the GPUs, a batch that does not divide) are never
written down; the framework's rules judge what is left. Candidates come in three levels, so that a layout whose leanest
candidate breaks a rule or does not fit is never spread out: layouts, layouts with a micro-batch size, and candidates
with checkpointing and offload.

Legend: t tensor, c context, p pipeline, d data, e expert parallel size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cost_models.cluster import Cluster
from cost_models.framework import Framework
from cost_models.strategy import COLUMNS, MISSING, BoolColumn, Column, IntColumn, PartialColumns, code
from search.axes import Axes, Offload, lattice_axes
from search.layer_layouts import LayerLayout, balanced_layouts
from search.problem import SearchProblem
from search.space import encode

BLOCK_ROWS: Final = 65_536
FOLLOWS_TENSOR: Final = 0
"""Expert tensor size on its axis: the tensor size of the row."""
LARGEST_RANK_TOKENS: Final = 2**15
"""Tokens of one micro-batch on one rank: matrices of that many rows fill every GPU of the catalog many times over."""

Columns = dict[str, Column]


@dataclass(frozen=True)
class Lattice:
    """The layouts of one framework on one cluster size, and how to spread them out into candidates."""

    search: SearchProblem
    framework: Framework
    axes: Axes
    layouts: Columns
    """Degrees, schedule, ZeRO stage, shard group, experts, and fields of `space` without an axis of their own."""
    layer_layouts: tuple[LayerLayout, ...]
    """What `layers_per_stage` of the layouts points to; where it is MISSING the framework's default is meant."""

    def __len__(self) -> int:
        return rows_of(self.layouts)

    def layout_blocks(self) -> Iterator[Columns]:
        """All layouts, so many at a time."""
        return blocks(self.layouts, BLOCK_ROWS)

    def micro_batch_choices(self, layouts: Columns) -> BoolColumn:
        """(n, micro-batch sizes of the axis): which sizes a layout can take."""
        batch = self.search.workload.global_batch_size // layouts["data_parallel_size"]
        micro = np.array(self.axes.micro, dtype=np.int64)
        choices: BoolColumn = batch[:, None] % micro == 0
        if "micro_batch_size" not in self.search.space:
            length = self.search.model.sequence_length or self.search.workload.sequence_length
            tokens = micro * length // layouts["context_parallel_size"][:, None]
            choices &= (tokens <= LARGEST_RANK_TOKENS) | (micro == min(self.axes.micro))
        return choices

    def with_smallest_micro_batch(self, layouts: Columns) -> tuple[Columns, IntColumn]:
        """Layouts with their smallest micro-batch size, and which layouts these are: those that can take one."""
        choices = self.micro_batch_choices(layouts)
        micro = np.array(self.axes.micro, dtype=np.int64)
        smallest = np.where(choices, micro, np.iinfo(np.int64).max).min(axis=1)
        rows = np.flatnonzero(choices.any(axis=1))
        return keep({**layouts, "micro_batch_size": smallest}, rows), rows

    def with_micro_batches(self, layouts: Columns) -> Columns:
        """Each layout with every micro-batch size."""
        return keep(cross(layouts, micro_batch_size=self.axes.micro), self.micro_batch_choices(layouts).ravel())

    def leanest(self, columns: Columns) -> PartialColumns:
        """With what takes least memory of the GPU: as much recomputed and offloaded as the axes allow."""
        kinds = np.full(rows_of(columns), code("offload", self.axes.offload[0][0]))
        for kind, _ in self.axes.offload:
            kinds = np.where(self.can_offload(columns, kind), code("offload", kind), kinds)
        fractions = np.full(rows_of(columns), max(fraction for _, fraction in self.axes.offload))
        recomputed = self._most_recomputed(columns)
        return self.partial({**recomputed, "offload": kinds, "offload_fraction": fractions})

    def leanest_with(self, columns: Columns, offload: Offload) -> PartialColumns:
        """As much recomputed as the axes allow, under one offload."""
        return self.with_offload(self._most_recomputed(columns), offload)

    def with_checkpointing(self, columns: Columns, choices: Sequence[int]) -> Columns:
        """Each row with each of the given choices of the axis (their numbers become column `choice`); shares that
        amount to no choice of their own are left out."""
        chosen = [self.axes.checkpointing[choice] for choice in choices]
        shares = [value if isinstance(value, float) else 1.0 for _, value in chosen]
        crossed = cross(
            columns,
            choice=choices,
            activation_checkpointing=[code("activation_checkpointing", mode) for mode, _ in chosen],
            checkpointed_layers=[value if isinstance(value, int) else MISSING for _, value in chosen],
            share=shares,
            # On its axis a share follows the next lower one.
            lower_share=[max((share for share in shares if share < own), default=0.0) for own in shares],
        )
        share, lower_share, stage_layers = crossed.pop("share"), crossed.pop("lower_share"), crossed["stage_layers"]
        layers = np.ceil(share * stage_layers).astype(np.int64)
        crossed["checkpointed_layers"] = np.where(share < 1, layers, crossed["checkpointed_layers"])
        # Shares of a small stage may round to the same count, or to the whole stage.
        own = (layers < stage_layers) & (layers > np.ceil(lower_share * stage_layers))
        return keep(crossed, (share == 1) | own)

    def with_offload(self, columns: Columns, offload: Offload) -> PartialColumns:
        """Under one offload."""
        kind, fraction = offload
        kinds = np.full(rows_of(columns), code("offload", kind))
        return self.partial({**columns, "offload": kinds, "offload_fraction": np.full(len(kinds), fraction)})

    def can_offload(self, columns: Columns, kind: str) -> BoolColumn:
        """(n,) whether the framework has the kind of offload with the row's ZeRO stage, which it is kept for."""
        if kind == "none":
            kept: BoolColumn = (_shard_ranks(columns) > 1) | (columns["zero_stage"] == _plain_stage(self.axes))
            return kept
        return np.isin(columns["zero_stage"], self.framework.offload_zero_stages.get(kind, ()))

    def partial(self, columns: Columns) -> PartialColumns:
        """Columns as the cost models take them."""
        if self.axes.narrow_weight_stages:
            # Weights are not stored in 8 bit where the optimizer that writes them is on the CPU.
            on_cpu = columns["offload"] == code("offload", "optimizer")
            columns = {**columns, "parameter_dtype": np.where(on_cpu, MISSING, columns["parameter_dtype"])}
        return PartialColumns({name: column for name, column in columns.items() if name in COLUMNS}, self.layer_layouts)

    def variants(self) -> int:
        """Candidates of one layout with one micro-batch size."""
        return len(self.axes.checkpointing) * len(self.axes.offload)

    def _most_recomputed(self, columns: Columns) -> Columns:
        mode, value = self.axes.checkpointing[-1]
        modes = np.full(rows_of(columns), code("activation_checkpointing", mode))
        layers = np.full(rows_of(columns), value if isinstance(value, int) else MISSING)
        if "recompute_modules" in columns:
            # Modules are recomputed selectively or not at all.
            selective = columns["recompute_modules"] > 0
            modes = np.where(selective, code("activation_checkpointing", "selective"), modes)
        return {**columns, "activation_checkpointing": modes, "checkpointed_layers": layers}


def build_lattice(search: SearchProblem, cluster: Cluster, framework: Framework) -> Lattice:
    """Lay out one framework on one cluster size."""
    axes = lattice_axes(search, cluster, framework)
    columns = _degrees(search, axes, cluster)
    columns = _with_schedules(columns, axes)
    columns = _with_shards(columns, axes, cluster, framework)
    columns = _with_experts(columns, axes)
    for name, values in axes.others.items():
        # Layouts of layers are told apart by their place in the list.
        encoded = range(len(values)) if name == "layers_per_stage" else [encode(name, value) for value in values]
        columns = cross(columns, **{name: list(encoded)})
    if axes.narrow_weight_stages:
        narrow = np.isin(columns["zero_stage"], axes.narrow_weight_stages)
        columns["parameter_dtype"] = np.where(narrow, code("parameter_dtype", "fp8"), MISSING)
    if axes.fp8_recipe is not None:
        usual = np.full(rows_of(columns), code("precision", search.workload.precision))
        narrow = columns.get("precision", usual) == code("precision", "fp8")
        columns["fp8_recipe"] = np.where(narrow, code("fp8_recipe", axes.fp8_recipe), MISSING)
    columns["stage_layers"] = -(-search.model.layers // columns["pipeline_parallel_size"])
    columns["framework"] = np.full(rows_of(columns), code("framework", framework.name))
    named = tuple(tuple(layout) for layout in axes.others.get("layers_per_stage", ()))
    if not axes.balances:
        return Lattice(search, framework, axes, columns, named)
    columns, layouts = _with_balanced_layers(columns, search, framework)
    return Lattice(search, framework, axes, columns, layouts)


def _with_balanced_layers(
    columns: Columns, search: SearchProblem, framework: Framework
) -> tuple[Columns, tuple[LayerLayout, ...]]:
    """Each pipeline with the framework's default layers a stage, and balanced ones where that tells."""
    found = balanced_layouts(
        search.model, framework, columns["pipeline_parallel_size"], columns["virtual_pipeline_size"]
    )
    rows = np.flatnonzero(found.number != MISSING)
    if not len(rows):
        return columns, ()
    default = {**columns, "layers_per_stage": np.full(rows_of(columns), MISSING)}
    balanced = {**columns, "layers_per_stage": found.number, "stage_layers": found.largest}
    joined = {name: np.concatenate([column, balanced[name][rows]]) for name, column in default.items()}
    return joined, found.layouts


def rows_of(columns: Mapping[str, Column]) -> int:
    """How many rows the columns have."""
    return len(next(iter(columns.values())))


def cross(columns: Mapping[str, Column], **added: Sequence[Any] | npt.NDArray[Any]) -> Columns:
    """Every row with every value; several added columns run together."""
    count = len(next(iter(added.values())))
    rows = rows_of(columns) if columns else 1
    result = {name: np.repeat(column, count) for name, column in columns.items()}
    return result | {name: np.tile(np.asarray(values), rows) for name, values in added.items()}


def keep(columns: Mapping[str, Column], rows: BoolColumn | IntColumn) -> Columns:
    """The given rows."""
    return {name: column[rows] for name, column in columns.items()}


def blocks(columns: Columns, size: int) -> Iterator[Columns]:
    """Consecutive rows, at most `size` at a time."""
    for begin in range(0, rows_of(columns), size):
        yield {name: column[begin : begin + size] for name, column in columns.items()}


def _degrees(search: SearchProblem, axes: Axes, cluster: Cluster) -> Columns:
    columns = cross({}, tensor_parallel_size=axes.tensor)
    columns = cross(columns, context_parallel_size=axes.context)
    columns = cross(columns, pipeline_parallel_size=axes.pipeline)
    model_ranks = columns["tensor_parallel_size"] * columns["context_parallel_size"] * columns["pipeline_parallel_size"]
    data = columns["data_parallel_size"] = np.maximum(cluster.gpus // model_ranks, 1)
    whole = (cluster.gpus % model_ranks == 0) & (search.workload.global_batch_size % data == 0)
    named = search.space.get("data_parallel_size")
    columns = keep(columns, whole if named is None else whole & np.isin(data, named))
    kinds = [MISSING if kind is None else code("context_parallel_kind", kind) for kind in axes.context_kinds]
    columns = cross(columns, context_parallel_kind=kinds)
    # Without context parallelism its kind has no effect: one value stands for all.
    return keep(columns, (columns["context_parallel_size"] > 1) | (columns["context_parallel_kind"] == kinds[0]))


def _with_schedules(columns: Columns, axes: Axes) -> Columns:
    virtual = [v for v, _ in axes.schedules]
    schedules = [MISSING if name is None else code("pipeline_schedule", name) for _, name in axes.schedules]
    numbers = np.arange(len(axes.schedules))
    columns = cross(columns, virtual_pipeline_size=virtual, pipeline_schedule=schedules, number=numbers)
    plain = virtual.index(1) if 1 in virtual else 0
    # Without a pipeline one schedule stands for all.
    rows = (columns["pipeline_parallel_size"] > 1) | (columns["number"] == plain)
    del columns["number"]
    return keep(columns, rows)


def _with_shards(columns: Columns, axes: Axes, cluster: Cluster, framework: Framework) -> Columns:
    columns = cross(columns, zero_stage=axes.zero)
    pipeline_stages = np.isin(columns["zero_stage"], framework.pipeline_zero_stages)
    # One rank has nothing to shard over: the lowest stage stands for all, but for those that an offload needs. A single
    # stage that `space` names is judged by the rules.
    columns = keep(
        columns,
        ((_shard_ranks(columns) > 1) | np.isin(columns["zero_stage"], _stages_of_one_rank(axes, framework)))
        & ((columns["pipeline_parallel_size"] == 1) | pipeline_stages | (len(axes.zero) == 1)),
    )
    if axes.replicate is None:
        columns = _with_domain_shards(columns, cluster)
    else:
        columns = cross(columns, data_parallel_replicate_size=axes.replicate)
        columns = keep(columns, columns["data_parallel_size"] % columns["data_parallel_replicate_size"] == 0)
    return _with_secondary_shards(columns, cluster) if axes.secondary else columns


def _shard_ranks(columns: Columns) -> IntColumn:
    """Ranks that optimizer states are sharded over."""
    ranks: IntColumn = columns["data_parallel_size"] * columns["context_parallel_size"]
    return ranks


def _plain_stage(axes: Axes) -> int:
    """The lowest ZeRO stage, of those with 8-bit weights where there are such."""
    return min([stage for stage in axes.zero if stage in axes.narrow_weight_stages] or axes.zero)


def _stages_of_one_rank(axes: Axes, framework: Framework) -> list[int]:
    """The plain stage, and the lowest that each offload runs with."""
    offloads = (framework.offload_zero_stages.get(kind, ()) for kind, _ in axes.offload)
    fitting = [[stage for stage in axes.zero if stage in stages] for stages in offloads]
    return [_plain_stage(axes), *(min(stages) for stages in fitting if stages)]


def _with_domain_shards(columns: Columns, cluster: Cluster) -> Columns:
    """Shards over all data ranks, and shards inside one NVLink domain with replicas across domains."""
    columns = cross(columns, inside=[False, True])
    data = columns["data_parallel_size"]
    model_ranks = columns["tensor_parallel_size"] * columns["context_parallel_size"]
    shards = np.maximum(cluster.nvlink_domain_gpus // model_ranks, 1)
    inside = columns.pop("inside")
    replicates = (columns["zero_stage"] > 0) & (shards > 1) & (shards < data) & (data % shards == 0)
    columns["data_parallel_replicate_size"] = np.where(inside, data // shards, 1)
    return keep(columns, ~inside | replicates)


def _with_secondary_shards(columns: Columns, cluster: Cluster) -> Columns:
    """Under ZeRO-3 across domains: without and with a second copy of the weights in each NVLink domain (hpZ)."""
    columns = cross(columns, inside=[False, True])
    shards = np.maximum(cluster.nvlink_domain_gpus // columns["tensor_parallel_size"], 1)
    ranks = _shard_ranks(columns)
    inside = columns.pop("inside")
    whole = columns["data_parallel_replicate_size"] == 1
    copies = whole & (columns["zero_stage"] == 3) & (shards > 1) & (shards < ranks) & (ranks % shards == 0)
    columns["secondary_shard_size"] = np.where(inside, shards, 1)
    return keep(columns, ~inside | copies)


def _with_experts(columns: Columns, axes: Axes) -> Columns:
    columns = cross(columns, expert_parallel_size=axes.expert)
    sizes = [MISSING if size is None else size for size in axes.expert_tensor]
    columns = cross(columns, expert_tensor_parallel_size=sizes)
    tensor, size = columns["tensor_parallel_size"], columns["expert_tensor_parallel_size"]
    follows = size == FOLLOWS_TENSOR
    columns["expert_tensor_parallel_size"] = np.where(follows, tensor, size)
    ranks = tensor * columns["context_parallel_size"] * columns["data_parallel_size"]
    expert_ranks = columns["expert_parallel_size"] * np.maximum(columns["expert_tensor_parallel_size"], 1)
    return keep(columns, (ranks % expert_ranks == 0) & ~(follows & (tensor == 1)))
