"""Seconds of one layer for one micro-batch: forward, backward, recomputation and exposed traffic, by kind of block."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from cost_models.architecture import Block, MixtureOfExperts
from cost_models.problem import Problem
from cost_models.quantisation import CODE_BYTES, DEQUANTISATION_OPERATORS, DEQUANTISED_BYTES, is_quantised
from cost_models.strategy import FloatColumn
from cost_models.time.attention import attention_shape, core_seconds
from cost_models.time.cases import LayerCases
from cost_models.time.collectives import Network
from cost_models.time.communication import (
    CaseGroups,
    Passes,
    context_traffic,
    element_bytes,
    expert_traffic,
    tensor_traffic,
)
from cost_models.time.device import Device
from cost_models.time.early_stop import spares_last_product
from cost_models.time.elementwise import ElementwiseTraffic, Traffic, elementwise_traffic
from cost_models.time.expert_launches import launch_seconds, uncaptured_operators
from cost_models.time.linears import LinearSeconds, dense_feed_forward, dense_linears, routed_linears, up_projections
from cost_models.time.lora import AdapterWork, adapter_work
from cost_models.time.orthogonal import dense_and_routed_seconds
from cost_models.time.precision import cast_bytes, recomputed_products

COMPILED_OPERATORS: Final = 0.35
"""Assumed: element-wise operators left after torch.compile has fused them: about one between two matrix products."""
BACKWARD_OPERATORS: Final = 1.25
"""Assumed: backward issues about twice the kernels, from C++ and without the modules' Python."""
CHECKPOINT_OPERATORS: Final = 15.0
"""Assumed: a checkpointed layer saves and restores the states of the random generators and detaches its inputs."""
COLLECTIVE_OPERATORS: Final = 2.0
"""Assumed: a collective of torch.distributed costs the CPU as much as some operators (stream events, work objects)."""
WEIGHT_CAST_BYTES: Final = 4.0 + 2.0
"""Of an fp32 weight under autocast: read, and written in 16 bit."""
DEQUANTISATION_BYTES: Final = CODE_BYTES + DEQUANTISED_BYTES
"""Read and written for each weight, in forward and again in backward and recomputation."""


@dataclass(frozen=True)
class LayerSeconds:
    """Columns (u,) for one kind of block, or (u, k) for all kinds."""

    forward: FloatColumn
    input_gradient: FloatColumn
    """Backward without the weight gradients."""
    weight_gradient: FloatColumn
    recompute: FloatColumn
    tensor: FloatColumn
    tensor_recompute: FloatColumn
    context: FloatColumn
    context_recompute: FloatColumn
    expert: FloatColumn
    expert_recompute: FloatColumn
    dense_weights: FloatColumn
    """Weights on one rank that follow the dense layout."""
    routed_weights: FloatColumn
    dense_trained: FloatColumn
    routed_trained: FloatColumn
    dense_orthogonal: FloatColumn
    """Muon's step on one rank that has every matrix of the dense layout."""
    routed_orthogonal: FloatColumn

    @property
    def once(self) -> FloatColumn:
        """All that every micro-batch does once."""
        gradients = self.input_gradient + self.weight_gradient
        return self.forward + gradients + self.tensor + self.context + self.expert

    @property
    def repeated(self) -> FloatColumn:
        """All that a recomputed layer does again."""
        return self.recompute + self.tensor_recompute + self.context_recompute + self.expert_recompute


@dataclass(frozen=True)
class _Work:
    attention: LinearSeconds
    up_projections: LinearSeconds
    """Part of `attention`."""
    dense: LinearSeconds
    routed: LinearSeconds
    core: tuple[FloatColumn, FloatColumn]
    """Of `core_seconds`."""
    traffic: ElementwiseTraffic
    adapters: AdapterWork
    dequantised: bool
    """Matrices are in NF4 and become 16-bit ones for every product."""
    tensor: Passes
    context: Passes
    expert: Passes

    def of_linears(self, name: str) -> FloatColumn:
        """Sum of a column over all linear layers of the block."""
        total: FloatColumn = sum(
            (getattr(part, name) for part in (self.dense, self.routed)), getattr(self.attention, name)
        )
        return total


def layer_seconds(
    problem: Problem, cases: LayerCases, network: Network, groups: CaseGroups, device: Device
) -> LayerSeconds:
    """All kinds of blocks of the model, stacked to (u, k)."""
    kinds = [_block_seconds(problem, block, cases, network, groups, device) for block in problem.model.blocks]
    return LayerSeconds(
        **{f.name: np.stack([getattr(kind, f.name) for kind in kinds], axis=1) for f in fields(LayerSeconds)}
    )


def _block_seconds(
    problem: Problem, block: Block, cases: LayerCases, network: Network, groups: CaseGroups, device: Device
) -> LayerSeconds:
    work = _work(problem, block, cases, network, groups, device)
    forward = _forward(work, cases, device)
    input_gradient, weight_gradient = _backward(work, cases, device)
    # A pass lasts as long as the CPU needs to issue it, where that is longer than kernels and traffic together.
    launches = launch_seconds(block, work.routed.operators, cases)
    operators = _issue_seconds(work, uncaptured_operators(block), cases, device)
    issue = operators + launches
    traffic = work.tensor.forward + work.context.forward + work.expert.forward
    backward_traffic = work.tensor.backward + work.context.backward + work.expert.backward
    idle = np.maximum(0.0, issue - traffic - forward)
    issue_backward = BACKWARD_OPERATORS * operators + 2 * launches
    late = np.maximum(0.0, issue_backward - backward_traffic - input_gradient - weight_gradient)
    saved = np.where(cases.table.cuda_graphs, 0.0, CHECKPOINT_OPERATORS)
    issue_again = issue + saved * _operator_seconds(cases, device)
    spared = np.where(spares_last_product(problem, block, cases.table), 1.0, 0.0)
    again = np.maximum(forward - spared * work.dense.last_forward, issue_again - traffic)
    full = np.where(cases.full, 1.0, 0.0)
    experts_again = np.maximum(full, cases.recomputes("moe"))
    dense = work.attention.weights + work.dense.weights + block.norm_parameters
    frozen = problem.workload.fine_tuning is not None
    muon = problem.workload.optimizer == "muon" and not frozen
    orthogonal = dense_and_routed_seconds(block, device) if muon else (0.0, 0.0)
    return LayerSeconds(
        forward=forward + idle,
        input_gradient=input_gradient + late,
        weight_gradient=weight_gradient,
        recompute=np.where(cases.full, again, _selective(work, cases, device)),
        tensor=work.tensor.forward + work.tensor.backward,
        # The last collective of a layer follows its last product.
        tensor_recompute=full * work.tensor.forward * (1.0 - spared / np.maximum(work.tensor.collectives, 1.0)),
        context=work.context.forward + work.context.backward,
        context_recompute=full * work.context.forward,
        expert=work.expert.forward + work.expert.backward,
        expert_recompute=experts_again * work.expert.forward,
        dense_weights=dense + work.adapters.weights,
        routed_weights=work.routed.weights,
        dense_trained=work.adapters.weights if frozen else dense,
        routed_trained=work.routed.trained_weights,
        dense_orthogonal=np.full(len(cases), orthogonal[0]),
        routed_orthogonal=orthogonal[1] / cases.expert,
    )


def _work(
    problem: Problem, block: Block, cases: LayerCases, network: Network, groups: CaseGroups, device: Device
) -> _Work:
    workload = problem.workload
    flash = workload.attention == "flash"
    trained = workload.fine_tuning is None
    shape = attention_shape(block.attention, cases)
    core = core_seconds(problem, block, cases, device)
    part = block.feed_forward
    imbalance = workload.expert_imbalance
    traffic = elementwise_traffic(
        problem.model, block, shape, cases, dropout=workload.dropout > 0, flash=flash, trained=trained
    )
    return _Work(
        attention=dense_linears(block.attention_linears, cases, device, trained=trained),
        up_projections=dense_linears(up_projections(block), cases, device, trained=trained),
        dense=dense_linears(dense_feed_forward(part), cases, device, trained=trained),
        routed=routed_linears(part, imbalance, cases, device, trained=trained)
        if isinstance(part, MixtureOfExperts)
        else dense_linears((), cases, device, trained=trained),
        core=core,
        traffic=traffic,
        adapters=adapter_work(block, imbalance, cases, workload.fine_tuning, device),
        dequantised=is_quantised(problem),
        tensor=tensor_traffic(problem.model, block, cases, network, groups),
        context=context_traffic(block, cases, network, groups, core),
        expert=expert_traffic(problem.model, block, imbalance, cases, network, groups),
    )


def _forward(work: _Work, cases: LayerCases, device: Device) -> FloatColumn:
    casts = cast_bytes(cases, work.of_linears("cast_elements"))
    weights = work.of_linears("weights")
    if work.dequantised:
        casts = casts + DEQUANTISATION_BYTES * weights
    else:
        casts = casts + np.where(cases.autocast, WEIGHT_CAST_BYTES * weights, 0.0)
    seconds: FloatColumn = (
        work.of_linears("forward")
        + work.core[0]
        + work.adapters.forward
        + device.memory_seconds(work.traffic.forward + casts)
        + _operators(work, cases) * device.kernels.kernel_gap_seconds
    )
    return seconds


def _backward(work: _Work, cases: LayerCases, device: Device) -> tuple[FloatColumn, FloatColumn]:
    casts = cast_bytes(cases, work.of_linears("cast_elements"))
    if work.dequantised:
        casts = casts + DEQUANTISATION_BYTES * work.of_linears("weights")
    input_gradient = (
        work.of_linears("input_gradient")
        + work.core[1]
        + work.adapters.input_gradient
        + device.memory_seconds(work.traffic.backward + casts)
        + 2 * _operators(work, cases) * device.kernels.kernel_gap_seconds
    )
    trained = work.of_linears("trained_weights") + work.adapters.weights
    weight_gradient = work.of_linears("weight_gradient") + work.adapters.weight_gradient
    weight_gradient = weight_gradient + device.memory_seconds(trained * _accumulation_bytes(cases))
    return input_gradient, weight_gradient


def _accumulation_bytes(cases: LayerCases) -> FloatColumn:
    """A weight's gradient read and written where it is accumulated; without a fused kernel it is made first."""
    fused = cases.fact("fused_gradient_accumulation")
    accumulated = 2 * cases.gradient_bytes
    made: FloatColumn = accumulated + np.where(fused, 0.0, 2 * element_bytes(cases))
    return made


def _selective(work: _Work, cases: LayerCases, device: Device) -> FloatColumn:
    gap = device.kernels.kernel_gap_seconds

    def again(traffic: Traffic) -> FloatColumn:
        return device.memory_seconds(traffic.forward) + traffic.operators * gap

    linears = work.of_linears("forward")
    if work.dequantised:
        linears = linears + device.memory_seconds(DEQUANTISATION_BYTES * work.of_linears("weights"))
    by_policy = cases.selective & (cases.table.recompute_modules == 0)
    repeated = recomputed_products(cases.table)
    products = repeated * linears + device.memory_seconds(work.traffic.forward) + work.traffic.operators * gap
    modules: FloatColumn = (
        cases.recomputes("core_attn") * (work.core[0] + again(work.traffic.core_attention))
        + cases.recomputes("layernorm") * again(work.traffic.norms)
        + (cases.recomputes("moe_act") | cases.recomputes("mlp") | cases.recomputes("moe"))
        * again(work.traffic.activation)
        + cases.recomputes("mlp") * work.dense.forward
        + cases.recomputes("moe") * work.routed.forward
        + cases.recomputes("mla_up_proj") * work.up_projections.forward
    )
    return np.where(by_policy, products, modules)


def _operators(work: _Work, cases: LayerCases) -> FloatColumn:
    linears = work.of_linears("operators")
    between = work.traffic.operators * np.where(cases.compiled, COMPILED_OPERATORS, 1.0)
    traffic = work.tensor.collectives + work.context.collectives + work.expert.collectives
    dequantised = DEQUANTISATION_OPERATORS * linears if work.dequantised else 0.0
    total: FloatColumn = linears + dequantised + between + work.adapters.operators + COLLECTIVE_OPERATORS * traffic
    return total


def _issue_seconds(work: _Work, uncaptured: float, cases: LayerCases, device: Device) -> FloatColumn:
    """CPU time of one forward of the layer."""
    operators = np.where(cases.table.cuda_graphs, uncaptured, _operators(work, cases))
    issued = operators * _operator_seconds(cases, device)
    seconds: FloatColumn = issued + cases.barrier_seconds(work.tensor.collectives)
    return seconds


def _operator_seconds(cases: LayerCases, device: Device) -> FloatColumn:
    return device.kernels.operator_seconds * cases.coefficient("operator_overhead")
