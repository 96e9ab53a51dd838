"""The cut that torch.compile makes between forward and backward, on meta tensors and without running either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table


def handed_over(function: Callable[..., Any], inputs: Tensor, *further: Tensor) -> int:
    """Bytes of distinct storages that the forward graph hands to the backward graph: its input and what it computes,
    without weights and tables."""
    handed: list[Tensor] = []

    def take(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        outputs = graph.graph.find_nodes(op="output")[0].args[0][1:]
        values = [(node.op, node.meta.get("val")) for node in outputs if isinstance(node, torch.fx.Node)]
        handed.extend(
            value
            for operation, value in values
            if isinstance(value, Tensor) and not value.is_complex()
            if operation != "placeholder" or value.shape == inputs.shape
        )
        return graph

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=take,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch.compile(function, backend=backend, fullgraph=True)(inputs, *further)
    storages = {value.untyped_storage()._cdata: value.untyped_storage().nbytes() for value in handed}
    return sum(storages.values())
