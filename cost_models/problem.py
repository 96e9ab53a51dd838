"""What one estimate or one search is about: a model, a cluster and a workload."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.architecture import ModelArchitecture
from cost_models.cluster import Cluster
from cost_models.workload import Workload


@dataclass(frozen=True)
class Problem:
    """The fixed part: everything that does not depend on the strategy."""

    model: ModelArchitecture
    cluster: Cluster
    workload: Workload
