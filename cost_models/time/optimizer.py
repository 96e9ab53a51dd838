"""The update itself, bound by the memory that it reads and writes, on the GPU or on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.cluster import Host
from cost_models.memory.states import trained_weight_bytes
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable, dtype_bytes
from cost_models.time.collectives import Network
from cost_models.time.device import Device
from cost_models.time.orthogonal import ELEMENT_BYTES, longest_seconds
from cost_models.time.step_groups import StepGroups

STATES: Final = {"adamw": 2, "adam": 2, "adamw-8bit": 2, "sgd": 0, "sgd-momentum": 1, "adafactor": 1, "muon": 1}
"""State tensors of a weight's size that each update reads and writes (Kingma and Ba, arXiv 1412.6980)."""
STATE_BYTES: Final = {"adamw-8bit": 1.0, "adafactor": 0.0}
"""Where the optimizer itself decides: block-wise 8 bit (arXiv 2110.02861), row and column sums (arXiv 1804.04235)."""
ADAFACTOR_BYTES: Final = 68.0
"""Per weight besides the update of the weight: seventeen fp32 passes of transformers' un-fused Adafactor.step, which
squares, adds, takes two means, multiplies out, scales, clips by its norm and multiplies by the rate, one by one."""
NORM_AND_CLIP_PASSES: Final = 3.0
"""The gradient norm reads every gradient, clipping reads and writes it."""
UNSCALE_BYTES: Final = 14.0
"""fp16: gradients copied to fp32 (2 + 4), unscaled and checked for infinities (4 + 4)."""
HOST_EFFICIENCY: Final = 0.43
"""Share of a host's memory bandwidth that DeepSpeed's CPUAdam reaches: 10 B weights of 28 bytes in 2.57 s on a DGX-2,
whose two processors read 256 GB/s (arXiv 2101.06840, section 6, latency of Adam by model size)."""


@dataclass(frozen=True)
class OptimizerSeconds:
    """Per step group, columns (g,)."""

    update: FloatColumn
    offload: FloatColumn
    """The part that runs on the host or waits for it."""


def optimizer_seconds(problem: Problem, groups: StepGroups, network: Network, device: Device) -> OptimizerSeconds:
    """Of the slowest stage, with what the host does for offloaded states."""
    table, stage, layout = groups.table, groups.weights, groups.layout
    weights = stage.dense_trained / layout.dense.sharded
    weights = weights + stage.routed_trained / layout.routed.sharded
    gradient = dtype_bytes(table.gradient_dtype)
    state = dtype_bytes(table.optimizer_state_dtype)
    parameter = trained_weight_bytes(problem, table)
    optimizer = problem.workload.optimizer
    states = STATES[optimizer] * np.minimum(state, STATE_BYTES.get(optimizer, 8.0))
    master = 4.0  # read and written once each, whether it is a copy or the stored weight
    written = np.where(parameter < 4, parameter, 0.0)
    update = weights * (gradient + 2 * (states + master) + written)
    if optimizer == "adafactor":
        update = update + weights * ADAFACTOR_BYTES
    cleaning = weights * NORM_AND_CLIP_PASSES * gradient
    cleaning = cleaning + np.where(table.is_choice("precision", "fp16"), weights * UNSCALE_BYTES, 0.0)
    moved = np.where(table.offloads_states, table.offload_fraction, 0.0)
    fixed = network.coefficients.by_framework("step_seconds")[table.framework]
    host = problem.cluster.host
    offload = np.zeros(len(table))
    if host is not None and moved.any():
        offload = moved * _host_seconds(problem, table, host, weights, states)
    seconds = device.memory_seconds(cleaning + update * (1 - moved)) + fixed
    if optimizer == "muon":
        seconds = seconds + _orthogonal_seconds(problem, groups, network, device)
    return OptimizerSeconds(seconds, offload)


def _orthogonal_seconds(problem: Problem, groups: StepGroups, network: Network, device: Device) -> FloatColumn:
    """Newton-Schulz on whole matrices, spread over the ranks that share states, and what gathers those matrices:
    over tensor ranks always, over data ranks where states are sharded (arXiv 2502.16982, section 2.3)."""
    stage, layout, table = groups.weights, groups.layout, groups.table
    work = np.zeros(len(table))
    for seconds, shards, routed in (
        (stage.dense_orthogonal, layout.dense, False),
        (stage.routed_orthogonal, layout.routed, True),
    ):
        least = longest_seconds(problem, device, routed=routed)
        work = work + np.where(seconds > 0, np.maximum(seconds / shards.sharded, np.minimum(least, seconds)), 0.0)
    dense = stage.dense_trained * ELEMENT_BYTES
    sharded = table.zero_stage > 0
    across = network.all_gather(layout.dense.shard, dense) + network.all_gather(
        layout.routed.shard, stage.routed_trained * ELEMENT_BYTES
    )
    gathered = network.all_gather(layout.tensor, dense * table.tensor_parallel_size / layout.dense.sharded)
    return work + gathered + np.where(sharded, across, 0.0)


def _host_seconds(
    problem: Problem, table: StrategyTable, host: Host, weights: FloatColumn, states: FloatColumn
) -> FloatColumn:
    """CPU Adam of all GPUs of a host at once, gradients down and weights up, and states through NVMe.

    ZeRO-Offload (arXiv 2101.06840) section 4.1: 16-bit gradients and weights cross PCIe once a step each; ZeRO-Infinity
    (arXiv 2104.07857) section 5: states stream from and to NVMe, as fast as the slower of both.
    """
    gpus = problem.cluster.gpus_per_node
    updated = gpus * weights * (2 * (states + 4.0) + 4.0)
    held = gpus * weights * (states + 4.0)
    spilled = np.clip((held - host.memory_bytes) / np.maximum(held, 1.0), 0.0, 1.0)
    compute = updated * (1 - spilled) / (host.memory_bytes_per_s * HOST_EFFICIENCY)
    if host.cxl_bytes_per_s:
        compute = np.maximum(compute, updated * spilled / host.cxl_bytes_per_s)
    wires = weights * (2.0 + 2.0) / host.gpu_bytes_per_s(gpus)
    seconds = compute + wires
    if host.nvme_read_bytes_per_s and host.nvme_write_bytes_per_s:
        streamed = held / host.nvme_read_bytes_per_s + held / host.nvme_write_bytes_per_s
        seconds = np.where(table.is_choice("offload", "nvme"), np.maximum(seconds, streamed), seconds)
    return seconds
