"""Memory of the host and NVMe: what is offloaded, and the peaks while a checkpoint is loaded and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import stored_bytes
from cost_models.memory.moments import MatrixSums
from cost_models.memory.states import Sharding, state_bytes_per_weight
from cost_models.memory.weights import HeaviestWeights, expert_ranks
from cost_models.problem import Problem
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable

_HOST_GRADIENT_BYTES = 4.0
"""ZeRO-Offload keeps fp32 gradients beside the fp32 states on the host (arXiv 2101.06840, section 4.1)."""
_PINNED_BYTES = 2.0
"""16-bit staging of a weight on its way back to the GPU, pinned."""


@dataclass(frozen=True)
class HostNeeds:
    """n strategies, bytes a node."""

    by_part: Mapping[str, FloatColumn]
    """By HOST_PARTS."""
    nvme: FloatColumn


def host_needs(
    problem: Problem, table: StrategyTable, weights: HeaviestWeights, shards: Sharding, spared: MatrixSums | None
) -> HostNeeds:
    """What the ranks of one node keep off the GPUs: those of the stage with most weights."""
    ranks = float(problem.cluster.gpus_per_node)
    states = table.offloads_states
    parameters = table.is_choice("offload", "optimizer-and-parameters", "nvme")
    nvme = table.is_choice("offload", "nvme")
    fraction = np.where(states, table.offload_fraction, 0.0)
    per_weight, per_state = stored_bytes(table), state_bytes_per_weight(problem, table)

    def of_ranks(bytes_per_weight: FloatColumn, sharded: BoolColumn, dense: FloatColumn, expert: FloatColumn) -> _Held:
        return _Held(
            ranks * bytes_per_weight / shards.dense_divisor(sharded) * dense,
            ranks * bytes_per_weight / shards.expert_divisor(sharded) * expert,
        )

    def of_states(bytes_per_weight: FloatColumn) -> _Held:
        return of_ranks(bytes_per_weight, shards.states, weights.trainable_dense, weights.trainable_expert)

    def of_moments(share: FloatColumn) -> _Held:
        whole = of_states(share * per_state)
        if spared is None:
            return whole
        without = of_ranks(share, shards.states, spared.dense, spared.expert)
        return _Held(whole.dense - without.dense, whole.expert - without.expert)

    stored = of_ranks(per_weight, shards.weights, weights.dense, weights.expert)
    moments = of_moments(fraction).total + of_states(fraction * _HOST_GRADIENT_BYTES).total
    staging = of_states(np.where(states, _PINNED_BYTES, 0.0))
    offloaded = moments + np.where(parameters, stored.total, 0.0)
    steady = np.where(nvme, 0.0, offloaded) + staging.total
    alike = _alike(problem, table)
    stored_once = stored.once(alike, shards, shards.weights)
    whole = problem.model.parameters * per_weight
    # Each rank maps its part of the files (safetensors): equal parts are the same pages of the node's memory.
    load = np.select(
        [table.is_choice("checkpoint_loading", "rank0"), table.is_choice("checkpoint_loading", "every-rank")],
        [whole, ranks * whole],
        stored_once,
    )
    # A full checkpoint is gathered on one rank. Of a sharded one, what lies on GPUs is staged, replicas once
    # (torch.distributed.checkpoint's dedup_save_plans); what is offloaded is written from where it lies.
    staged = np.where(parameters, 0.0, stored_once)
    staged = staged + of_moments(1.0 - fraction).once(alike, shards, shards.states)
    save = np.where(table.is_choice("checkpoint_saving", "full"), whole, staged)
    parts = {"steady": steady, "load_peak": steady + load, "checkpoint_peak": steady + save}
    return HostNeeds(parts, np.where(nvme, offloaded, 0.0))


@dataclass(frozen=True)
class _Held:
    """n strategies: bytes of all ranks of a node."""

    dense: FloatColumn
    expert: FloatColumn

    @property
    def total(self) -> FloatColumn:
        """Every rank's own."""
        return self.dense + self.expert

    def once(self, alike: _Alike, shards: Sharding, sharded: BoolColumn) -> FloatColumn:
        """Equal shards on the node counted once."""
        dense = np.maximum(alike.dense / shards.dense_divisor(sharded), 1.0)
        expert = np.maximum(alike.expert / shards.expert_divisor(sharded), 1.0)
        return self.dense / dense + self.expert / expert


@dataclass(frozen=True)
class _Alike:
    """n strategies: ranks of one node that work with the same weights, sharded among them or not."""

    dense: FloatColumn
    expert: FloatColumn


def _alike(problem: Problem, table: StrategyTable) -> _Alike:
    """Tensor ranks lie innermost, context and data ranks around them; experts have a layout of their own."""
    tensor = table.tensor_parallel_size
    replicas = table.context_parallel_size * table.data_parallel_size
    here = float(problem.cluster.gpus_per_node)

    def on_a_node(split: FloatColumn) -> FloatColumn:
        return np.clip(here / split, 1.0, np.maximum(tensor * replicas / split, 1.0))

    return _Alike(on_a_node(tensor.astype(np.float64)), on_a_node(expert_ranks(table)))
