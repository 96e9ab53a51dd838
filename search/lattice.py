"""The coarse lattice: every way to lay a model out on all GPUs with the values of `axes`, in blocks of columns.

Factorisations that cannot work (degrees that do not multiply to the GPUs, a batch that does not divide) are never
written down; the framework's rules judge what is left.

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
from cost_models.strategy import MISSING, BoolColumn, Column, PartialColumns, code
from search.axes import Axes, lattice_axes
from search.problem import SearchProblem
from search.space import encode

BLOCK_ROWS: Final = 65_536
FOLLOWS_TENSOR: Final = 0
"""Expert tensor size on its axis: the tensor size of the row."""

_Columns = dict[str, Column]


@dataclass(frozen=True)
class Lattice:
    """The layouts of one framework on one cluster size, not yet crossed with what does not change the layout."""

    axes: Axes
    layouts: Mapping[str, Column]
    """Degrees, schedule, micro-batch, ZeRO stage, shard group."""
    inner: int
    """Combinations of checkpointing, offload and the other fields of `space` for each layout."""

    def __len__(self) -> int:
        return len(self.layouts["framework"]) * self.inner

    def blocks(self) -> Iterator[PartialColumns]:
        """All candidates, at most about `BLOCK_ROWS` at a time."""
        step = max(1, BLOCK_ROWS // self.inner)
        for begin in range(0, len(self.layouts["framework"]), step):
            yield _with_inner(self.axes, {name: column[begin : begin + step] for name, column in self.layouts.items()})


def build_lattice(search: SearchProblem, cluster: Cluster, framework: Framework) -> Lattice:
    """Lay out one framework on one cluster size."""
    axes = lattice_axes(search, cluster, framework)
    columns = _degrees(search, axes, cluster)
    columns = _with_schedules(columns, axes)
    columns = _with_micro_batches(columns, axes, search.workload.global_batch_size)
    columns = _with_shards(columns, axes, cluster, framework)
    columns = _with_experts(columns, axes)
    columns["stage_layers"] = -(-search.model.layers // columns["pipeline_parallel_size"])
    columns["framework"] = np.full(len(columns["micro_batch_size"]), code("framework", framework.name))
    inner = len(axes.checkpointing) * len(axes.offload)
    for values in axes.others.values():
        inner *= len(values)
    return Lattice(axes, columns, inner)


def _cross(columns: Mapping[str, Column], **added: Sequence[Any] | npt.NDArray[Any]) -> _Columns:
    """Every row with every value; several added columns run together."""
    count = len(next(iter(added.values())))
    rows = len(next(iter(columns.values()))) if columns else 1
    result = {name: np.repeat(column, count) for name, column in columns.items()}
    return result | {name: np.tile(np.asarray(values), rows) for name, values in added.items()}


def _keep(columns: Mapping[str, Column], rows: BoolColumn) -> _Columns:
    return {name: column[rows] for name, column in columns.items()}


def _degrees(search: SearchProblem, axes: Axes, cluster: Cluster) -> _Columns:
    columns = _cross({}, tensor_parallel_size=axes.tensor)
    columns = _cross(columns, context_parallel_size=axes.context)
    columns = _cross(columns, pipeline_parallel_size=axes.pipeline)
    model_ranks = columns["tensor_parallel_size"] * columns["context_parallel_size"] * columns["pipeline_parallel_size"]
    columns["data_parallel_size"] = cluster.gpus // model_ranks
    named = search.space.get("data_parallel_size")
    data = np.maximum(columns["data_parallel_size"], 1)
    whole = (cluster.gpus % model_ranks == 0) & (search.workload.global_batch_size % data == 0)
    columns = _keep(columns, whole if named is None else whole & np.isin(data, named))
    kinds = [MISSING if kind is None else code("context_parallel_kind", kind) for kind in axes.context_kinds]
    columns = _cross(columns, context_parallel_kind=kinds)
    # Without context parallelism its kind has no effect: one value stands for all.
    return _keep(columns, (columns["context_parallel_size"] > 1) | (columns["context_parallel_kind"] == kinds[0]))


def _with_schedules(columns: _Columns, axes: Axes) -> _Columns:
    virtual = [v for v, _ in axes.schedules]
    schedules = [MISSING if name is None else code("pipeline_schedule", name) for _, name in axes.schedules]
    columns = _cross(
        columns,
        virtual_pipeline_size=virtual,
        pipeline_schedule=schedules,
        number=np.arange(len(axes.schedules)),
    )
    plain = virtual.index(1) if 1 in virtual else 0
    rows = (columns["pipeline_parallel_size"] > 1) | (columns["number"] == plain)
    del columns["number"]
    return _keep(columns, rows)


def _with_micro_batches(columns: _Columns, axes: Axes, global_batch_size: int) -> _Columns:
    columns = _cross(columns, micro_batch_size=axes.micro)
    return _keep(columns, global_batch_size // columns["data_parallel_size"] % columns["micro_batch_size"] == 0)


def _with_shards(columns: _Columns, axes: Axes, cluster: Cluster, framework: Framework) -> _Columns:
    columns = _cross(columns, zero_stage=axes.zero)
    ranks = columns["data_parallel_size"] * columns["context_parallel_size"]
    pipeline_stages = np.isin(columns["zero_stage"], framework.pipeline_zero_stages)
    # One rank has nothing to shard over: the lowest stage stands for all. `space` may force a stage on a pipeline.
    columns = _keep(
        columns,
        ((ranks > 1) | (columns["zero_stage"] == min(axes.zero)))
        & ((columns["pipeline_parallel_size"] == 1) | pipeline_stages | (len(axes.zero) == 1)),
    )
    if axes.replicate is not None:
        columns = _cross(columns, data_parallel_replicate_size=axes.replicate)
        return _keep(columns, columns["data_parallel_size"] % columns["data_parallel_replicate_size"] == 0)
    return _with_domain_shards(columns, cluster)


def _with_domain_shards(columns: _Columns, cluster: Cluster) -> _Columns:
    """Shards over all data ranks, and shards inside one NVLink domain with replicas across domains."""
    columns = _cross(columns, inside=[False, True])
    data = columns["data_parallel_size"]
    model_ranks = columns["tensor_parallel_size"] * columns["context_parallel_size"]
    shards = np.maximum(cluster.nvlink_domain_gpus // model_ranks, 1)
    inside = columns.pop("inside")
    replicates = (columns["zero_stage"] > 0) & (shards > 1) & (shards < data) & (data % shards == 0)
    columns["data_parallel_replicate_size"] = np.where(inside, data // shards, 1)
    return _keep(columns, ~inside | replicates)


def _with_experts(columns: _Columns, axes: Axes) -> _Columns:
    columns = _cross(columns, expert_parallel_size=axes.expert)
    sizes = [MISSING if size is None else size for size in axes.expert_tensor]
    columns = _cross(columns, expert_tensor_parallel_size=sizes)
    tensor, size = columns["tensor_parallel_size"], columns["expert_tensor_parallel_size"]
    follows = size == FOLLOWS_TENSOR
    columns["expert_tensor_parallel_size"] = np.where(follows, tensor, size)
    ranks = tensor * columns["context_parallel_size"] * columns["data_parallel_size"]
    expert_ranks = columns["expert_parallel_size"] * np.maximum(columns["expert_tensor_parallel_size"], 1)
    return _keep(columns, (ranks % expert_ranks == 0) & ~(follows & (tensor == 1)))


def _with_inner(axes: Axes, layouts: Mapping[str, Column]) -> PartialColumns:
    modes = [code("activation_checkpointing", mode) for mode, _ in axes.checkpointing]
    # A share (float) of the stage's layers, or a number of layers (int).
    shares = [value if isinstance(value, float) else 0.0 for _, value in axes.checkpointing]
    counts = [value if isinstance(value, int) else MISSING for _, value in axes.checkpointing]
    columns = _cross(
        layouts,
        activation_checkpointing=modes,
        share=shares,
        # On its axis a share follows the next lower one of the same mode.
        lower_share=[max((s for s in shares if s < share), default=0.0) for share in shares],
        checkpointed_layers=counts,
    )
    share, lower, stage_layers = columns.pop("share"), columns.pop("lower_share"), columns.pop("stage_layers")
    partly = (share > 0) & (share < 1)
    layers = np.ceil(share * stage_layers).astype(np.int64)
    columns["checkpointed_layers"] = np.where(partly, layers, columns["checkpointed_layers"])
    # Shares of a small stage that round to the same count, or to the whole stage, are one candidate.
    columns = _keep(columns, ~partly | ((layers < stage_layers) & (layers > np.ceil(lower * stage_layers))))
    kinds = [code("offload", kind) for kind, _ in axes.offload]
    columns = _cross(columns, offload=kinds, offload_fraction=[fraction for _, fraction in axes.offload])
    layouts_named: tuple[tuple[int, ...], ...] = ()
    for name, values in axes.others.items():
        if name == "layers_per_stage":
            layouts_named = tuple(tuple(value) for value in values)
            columns = _cross(columns, layers_per_stage=np.arange(len(values)))
        else:
            columns = _cross(columns, **{name: [encode(name, value) for value in values]})
    return PartialColumns(columns, layouts_named)
