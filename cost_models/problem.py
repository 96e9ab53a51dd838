"""What one estimate or one search is about: a model, a cluster and a workload."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.strategy import IntColumn, StrategyTable
from cost_models.workload import Workload


@dataclass(frozen=True)
class Problem:
    """The fixed part: everything that does not depend on the strategy."""

    model: ModelArchitecture
    cluster: Cluster
    workload: Workload

    def micro_batches(self, table: StrategyTable) -> IntColumn:
        """Micro-batches of one step, (n,): the contract's m, rounded down where the batch does not divide."""
        return self.workload.global_batch_size // (table.data_parallel_size * table.micro_batch_size)
