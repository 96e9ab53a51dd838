"""Channels of the traffic between layers and steps: data parallel, expert data parallel, pipeline.

Worked out once for each distinct layout of ranks and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.distinct import distinct_rows
from cost_models.strategy import FloatColumn, IntColumn, StrategyTable
from cost_models.time.channels import Channel
from cost_models.time.collectives import Network

RANK_COLUMNS: Final = (
    "tensor_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "data_parallel_replicate_size",
    "secondary_shard_size",
    "pipeline_parallel_size",
    "expert_parallel_size",
    "expert_tensor_parallel_size",
)


@dataclass(frozen=True)
class ShardGroups:
    """Groups over which weights of one kind are sharded and replicated; columns (n,)."""

    shard: Channel
    replicate: Channel
    sharded: FloatColumn
    """Ranks that share one copy of the optimizer states."""


@dataclass(frozen=True)
class RankLayout:
    """All groups of a strategy beyond one layer; columns (n,)."""

    dense: ShardGroups
    """Data times context ranks, the shard group inside the replicate group."""
    routed: ShardGroups
    """What expert and expert-tensor ranks leave of tensor times context times data."""
    tensor: Channel
    secondary: Channel
    """Ranks that share hpZ's second copy of the weights; one rank where there is none."""
    pipeline: Channel
    ends: Channel
    """First and last stage."""


def rank_layout(network: Network, table: StrategyTable) -> RankLayout:
    """Where everything lies, row by row."""
    representatives, number = distinct_rows([getattr(table, name) for name in RANK_COLUMNS])
    few = table.take(representatives)
    stages = few.pipeline_parallel_size
    tensor = few.tensor_parallel_size
    replicas = few.data_parallel_size * few.context_parallel_size
    taken = few.expert_parallel_size * few.expert_tensor_parallel_size
    inner = tensor * replicas
    return RankLayout(
        dense=_shards(network, table, few, replicas, tensor, number),
        routed=_shards(network, table, few, np.maximum(inner // taken, 1), taken, number),
        tensor=network.channel(tensor, np.ones_like(tensor)).take(number),
        secondary=network.channel(few.secondary_shard_size, tensor).take(number),
        pipeline=network.channel(stages, inner).take(number),
        ends=network.channel(np.minimum(stages, 2), inner * (stages - 1)).take(number),
    )


def _shards(
    network: Network,
    table: StrategyTable,
    few: StrategyTable,
    ranks: IntColumn,
    stride: IntColumn,
    number: IntColumn,
) -> ShardGroups:
    replicate = np.minimum(few.data_parallel_replicate_size, ranks)
    shard = np.maximum(ranks // replicate, 1)
    within = network.channel(shard, stride).take(number)
    return ShardGroups(
        shard=within,
        replicate=network.channel(replicate, stride * shard).take(number),
        sharded=np.where(table.zero_stage > 0, within.ranks, 1.0),
    )
