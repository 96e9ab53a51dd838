"""What the runtime keeps: workspaces, the CUDA context, communicators, and what the caching allocator cannot use."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.architecture import Block, ModelArchitecture
from cost_models.memory.facts import flag
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, dtype_bytes
from cost_models.units import MIB

_CUBLAS_WORKSPACE_BYTES: Final = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""torch.backends.cuda: CUBLAS_WORKSPACE_CONFIG is :4096:8 (32 MiB) from Hopper on."""
_CUBLAS_WORKSPACE_ELSE_BYTES: Final = 4096 * 2 * 1024 + 16 * 8 * 1024
"""Before: :4096:2:16:8."""
_THREADS: Final = 2
"""Forward and backward run in threads of their own, each with a cuBLAS handle (torch/csrc/autograd/engine.cpp)."""
_GROUPED_WORKSPACES: Final = 4
"""Transformer Engine has a workspace of its own, and one for each stream of a grouped matrix product
(get_multi_stream_cublas_workspace)."""
CONTEXT_BYTES: Final = 484 * MIB
"""A process with CUDA and NCCL set up and no tensors, its kernels loaded lazily as since CUDA 11.7 (NVIDIA/nccl pull
request 2366, on Ampere; 426 MiB without NCCL on Ada: unslothai/unsloth-zoo 1053). Before CUDA 11.7 it was about twice
as much (pytorch/pytorch issue 107667)."""
_CONNECTION_BYTES: Final = 12 * MIB
"""Of a channel to one peer: 10 MiB on the receiving and 2 MiB on the sending end (NVIDIA/nccl issue 1685)."""
_RING_CHANNELS: Final = 24
"""Channels of a collective: "24 coll channels" in NCCL's log on A100 and H100. Since NCCL 2.22 only the algorithm that
is used is connected (NCCL_RUNTIME_CONNECT); before, 544 to 688 MiB a communicator (NVIDIA/nccl issue 964)."""
_PEER_CHANNELS: Final = 32
"""Channels to each peer of an all-to-all: "32 p2p channels per peer" in the same logs; issue 1685 has them in use."""
_NEAR_PEERS: Final = 7
"""Peers with so many channels: those of one node of 8; further ones share the network's buffers."""
_FRAGMENTATION_OF_ALL: Final = 0.04
_FRAGMENTATION_OF_TRANSIENT: Final = 0.10
_FRAGMENTATION_OF_STEP: Final = 0.90
"""What the caching allocator holds besides, as shares of the allocated bytes, of those that come and go, and of the
temporaries of the optimizer's step, which find no cached block of their size (fitted: 60 public Megatron runs on V100
and B200 with both statistics; median error of the reserved bytes given the allocated ones 1.2 %)."""
_FRAGMENTATION_EXPANDABLE: Final = 0.02
"""Of the allocated bytes with expandable segments, which strand no freed blocks (PYTORCH_CUDA_ALLOC_CONF)."""


def workspace_bytes(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) workspaces and placeholders that the caching allocator counts as allocated."""
    generation = problem.cluster.gpu.generation
    each = _CUBLAS_WORKSPACE_BYTES.get(generation or "", _CUBLAS_WORKSPACE_ELSE_BYTES)
    engine = flag(table, "weight_gradient_placeholders") & table.is_choice("gradient_dtype", "fp32")
    engine &= dtype_bytes(table.parameter_dtype) < 4.0
    grouped = _holds(stages, [index for index, block in enumerate(problem.model.blocks) if block.experts])
    of_engine = (1.0 + _GROUPED_WORKSPACES * grouped) * each + _placeholder_bytes(problem.model, table, stages)
    return _THREADS * each + np.where(engine[stages.row], of_engine, 0.0)


def communicator_bytes(table: StrategyTable) -> FloatColumn:
    """(n,) communicators of every parallel dimension in use, outside of the allocator; experts exchange tokens with
    each of their peers."""
    dimensions = (
        "data_parallel_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "context_parallel_size",
        "expert_parallel_size",
    )
    groups = sum((getattr(table, name) > 1).astype(np.float64) for name in dimensions)
    peers = np.minimum(table.expert_parallel_size - 1.0, _NEAR_PEERS)
    connections: FloatColumn = _RING_CHANNELS * groups + _PEER_CHANNELS * peers
    return _CONNECTION_BYTES * connections


def fragmentation_bytes(
    expandable: BoolColumn, allocated: FloatColumn, transient: FloatColumn, step: FloatColumn
) -> FloatColumn:
    """(m,) reserved less allocated."""
    fixed = _FRAGMENTATION_OF_ALL * allocated + _FRAGMENTATION_OF_TRANSIENT * transient + _FRAGMENTATION_OF_STEP * step
    return np.where(expandable, _FRAGMENTATION_EXPANDABLE * allocated, fixed)


def stuck_fragmentation_bytes(expandable: BoolColumn, allocated: FloatColumn) -> FloatColumn:
    """(m,) the part of it that the allocator cannot give back when it runs short: blocks that are partly in use."""
    return np.where(expandable, 0.0, _FRAGMENTATION_OF_ALL * allocated)


def _holds(stages: StageRows, kinds: list[int]) -> FloatColumn:
    """(m,) 1 where a stage has a layer of any of the given blocks."""
    present = np.zeros(len(stages), dtype=np.bool_)
    for kind in kinds:
        present |= stages.layers[:, kind] > 0
    return present.astype(np.float64)


def _placeholder_bytes(model: ModelArchitecture, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """A 16-bit placeholder for each shape of a matrix on the stage (Transformer Engine keeps them by shape)."""
    kinds: dict[tuple[int, int, str], list[int]] = {}
    for index, block in enumerate(model.blocks):
        for shape in _fused_shapes(block):
            kinds.setdefault(shape, []).append(index)
    ranks: dict[str, IntColumn] = {
        "tensor": table.tensor_parallel_size,
        "expert": table.expert_tensor_parallel_size,
        "whole": np.ones(len(table), dtype=np.int64),
    }
    total = np.zeros(len(stages))
    for (rows, columns, split), where in kinds.items():
        local: FloatColumn = 2.0 * rows * columns / ranks[split]
        total += local[stages.row] * _holds(stages, where)
    return total


def _fused_shapes(block: Block) -> set[tuple[int, int, str]]:
    """Shapes as Transformer Engine has them: q, k, v in one matrix, gate and up in one."""
    widths: dict[tuple[str, int, str], int] = {}
    for linear in block.linears:
        group = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}.get(linear.name, linear.name)
        split = "expert" if linear.copies > 1 else "whole" if linear.split == "none" else "tensor"
        key = (group, linear.in_features, split)
        widths[key] = widths.get(key, 0) + linear.out_features
    return {(inputs, outputs, split) for (_, inputs, split), outputs in widths.items()}
