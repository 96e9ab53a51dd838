"""Which collectives the gradient reduction is priced as, for a person to read: the same choice that the prices make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from cost_models.memory.facts import stage_flags
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable, dtype_bytes
from cost_models.time.channels import Channel
from cost_models.time.coefficients import default_coefficients
from cost_models.time.collectives import Network
from cost_models.time.data_parallel import BUCKET_PARAMETERS
from cost_models.time.rank_layout import rank_layout

PROTOCOL_NAMES: Final = ("Simple", "LL128", "LL")
"""In the order of `protocols.PROTOCOLS`."""


@dataclass(frozen=True)
class Reduction:
    """One level of the reduction of gradients that are not of routed experts."""

    collective: Literal["all-reduce", "reduce-scatter"]
    algorithm: Literal["ring", "tree"]
    protocol: str
    """Of NCCL: the fastest for the message."""
    ranks: int
    nodes: int
    message_bytes: float
    """Of one bucket, or of one layer's gradients where layers are sharded."""


def gradient_reductions(problem: Problem, table: StrategyTable) -> list[tuple[Reduction, ...]]:
    """The levels of each strategy, shards first; none where there is one rank, or where adapters are trained, whose
    gradients are small."""
    if problem.workload.fine_tuning is not None:
        return [()] * len(table)
    network = Network(problem.cluster, default_coefficients())
    groups = rank_layout(network, table).dense
    scattered = (table.zero_stage > 0) & ~stage_flags(table, "reduces_after_backward")
    message = _message_bytes(problem, table)
    within = zip(
        _levels(network, groups.shard, message, "reduce-scatter"),
        _levels(network, groups.shard, message, "all-reduce"),
        _levels(network, groups.replicate, message / groups.shard.ranks, "all-reduce"),
        strict=True,
    )
    return [
        tuple(level for level in ((shard, replicas) if split else (whole,)) if level.ranks > 1)
        for split, (shard, whole, replicas) in zip(scattered.tolist(), within, strict=True)
    ]


def _levels(
    network: Network, group: Channel, message: FloatColumn, collective: Literal["all-reduce", "reduce-scatter"]
) -> Iterator[Reduction]:
    protocol, climbs = network.choice(group, message, summed=collective == "all-reduce")
    ranks, nodes = group.ranks.astype(np.int64).tolist(), group.at(group.nodes).astype(np.int64).tolist()
    for row, (chosen, tree) in enumerate(zip(protocol.tolist(), climbs.tolist(), strict=True)):
        yield Reduction(
            collective=collective,
            algorithm="tree" if tree else "ring",
            protocol=PROTOCOL_NAMES[chosen],
            ranks=ranks[row],
            nodes=nodes[row],
            message_bytes=float(message[row]),
        )


def _message_bytes(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Of the mean stage: what `data_parallel` cuts the slowest stage's gradients into."""
    model = problem.model
    routed = sum(
        part.experts.routed.parameters
        for kind in model.layer_blocks
        if (part := model.blocks[kind]).experts is not None
    )
    weights = (model.parameters - routed) / (table.tensor_parallel_size * table.pipeline_parallel_size)
    by_layer = stage_flags(table, "gathers_every_micro_batch")
    layers = np.maximum(model.layers / table.pipeline_parallel_size, 1.0)
    pieces = np.where(by_layer, layers, np.ceil(weights / BUCKET_PARAMETERS))
    message: FloatColumn = weights * dtype_bytes(table.gradient_dtype) / pieces
    return message
