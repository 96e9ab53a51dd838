"""From a launch file or config to a strategy."""

from __future__ import annotations

from typing import Any

from app.schemas.parsing import ParseRequest
from cost_models.cluster import Cluster
from cost_models.cluster_input import resolve_cluster
from cost_models.errors import InvalidInput
from search.launch.parsers import PARSERS

_SPLITS = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size")


def parse_strategy(request: ParseRequest) -> dict[str, Any]:
    """Strategy and workload as the text has them; the data-parallel size by the cluster, where the text is silent.

    Raises:
        InvalidInput: A text that is not of its format, or degrees that are not those of the cluster.
    """
    parsed = PARSERS[request.format](request.content)
    strategy = dict(parsed.strategy)
    if request.cluster is not None:
        strategy |= _data_parallel(strategy, resolve_cluster(request.cluster.model_dump(exclude_none=True)))
    return {
        "strategy": strategy,
        "workload": dict(parsed.workload),
        "unmapped": list(parsed.unmapped),
        "model": {"architecture": dict(parsed.model)} if parsed.model else None,
    }


def _data_parallel(strategy: dict[str, Any], cluster: Cluster) -> dict[str, int]:
    taken = 1
    for name in _SPLITS:
        taken *= strategy.get(name, 1)
    data = strategy.get("data_parallel_size", cluster.gpus // taken)
    if data * taken != cluster.gpus:
        message = f"the degrees multiply to {data * taken or taken} GPUs, the cluster has {cluster.gpus}"
        raise InvalidInput(("cluster",), "degrees_do_not_multiply_to_gpus", message)
    return {"data_parallel_size": data}
