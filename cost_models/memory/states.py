"""Bytes of stored weights, gradients and optimizer states, and over which ranks each is sharded.

ZeRO (arXiv 1910.02054, section 5): stage 1 shards the states, 2 the gradients as well, 3 the weights too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.memory.facts import flag, number, stored_bytes
from cost_models.memory.moments import ADAFACTOR_STATE_BYTES, MATRIX_OPTIMIZERS, largest_tensor_states, spared_moments
from cost_models.memory.weights import LocalWeights, adapter_weights, end_weights, stage_sums
from cost_models.problem import Problem
from cost_models.quantisation import CONSTANT_BYTES, is_quantised, quantised_weights
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable, dtype_bytes

MOMENTS: Final = {"adamw": 2, "adam": 2, "adamw-8bit": 2, "sgd": 0, "sgd-momentum": 1, "adafactor": 1, "muon": 2}
"""State tensors of an optimizer beside the weights (Adam: arXiv 1412.6980, algorithm 1); for Muon and Adafactor, beside
what they do not treat as matrices (`moments`)."""
_EIGHT_BIT_BLOCK: Final = 256
"""Elements that share one fp32 constant in an 8-bit state (arXiv 2110.02861; bitsandbytes since 0.45)."""
_MASTER_BYTES: Final = 4.0
_FP32_BYTES: Final = 4.0
_SIXTEEN_BITS: Final = 2.0
_SECONDARY_BYTES: Final = 2.0
"""hpZ keeps a second, 16-bit copy of the weights (arXiv 2306.10209, section 4.2)."""


@dataclass(frozen=True)
class Sharding:
    """n strategies: over how many ranks each kind of tensor is divided."""

    dense_ranks: FloatColumn
    """One shard group of dense weights: (data / replicate) x context."""
    expert_ranks: FloatColumn
    """One shard group of experts."""
    weights: BoolColumn
    gradients: BoolColumn
    states: BoolColumn

    def dense_divisor(self, sharded: BoolColumn) -> FloatColumn:
        """Ranks over which dense tensors are divided where `sharded`, else 1."""
        return np.where(sharded, self.dense_ranks, 1.0)

    def held(
        self, each: FloatColumn, sharded: BoolColumn, dense: FloatColumn, expert: FloatColumn, row: IntColumn
    ) -> FloatColumn:
        """(m,) bytes of one rank where a weight has `each` (n,) bytes; `dense` and `expert` count weights, (m,)."""
        of_experts = (each / self.expert_divisor(sharded))[row] * expert
        return (each / self.dense_divisor(sharded))[row] * dense + of_experts

    def expert_divisor(self, sharded: BoolColumn) -> FloatColumn:
        """The same of experts."""
        return np.where(sharded, self.expert_ranks, 1.0)


@dataclass(frozen=True)
class StateBytes:
    """m stage rows, bytes."""

    parameters: FloatColumn
    gradients: FloatColumn
    optimizer_states: FloatColumn
    step_gradients: FloatColumn
    """fp32 copies of 16-bit gradients while the optimizer steps."""


def sharding(problem: Problem, table: StrategyTable) -> Sharding:
    """Shard groups. Experts: the quotient of the dense ranks and expert x expert-tensor ranks."""
    replicate = table.data_parallel_replicate_size
    dense = table.data_parallel_size * table.context_parallel_size / replicate
    all_ranks = table.tensor_parallel_size * table.context_parallel_size * table.data_parallel_size
    expert = all_ranks / (table.expert_parallel_size * table.expert_tensor_parallel_size)
    zero = table.zero_stage
    whole_in_pipeline = flag(table, "pipeline_keeps_whole_gradients") & (table.pipeline_parallel_size > 1)
    return Sharding(
        dense_ranks=dense,
        expert_ranks=_even_expert_ranks(problem, table, np.maximum(expert / replicate, 1.0)),
        weights=(zero == 3) | ((zero == 2) & flag(table, "stage_2_shards_weights")),
        gradients=(zero >= 2) & ~whole_in_pipeline,
        states=zero >= 1,
    )


def _even_expert_ranks(problem: Problem, table: StrategyTable, ranks: FloatColumn) -> FloatColumn:
    """Ranks that would share evenly as much as the fullest rank holds, where experts are not cut."""
    most = max((block.experts.experts for block in problem.model.blocks if block.experts), default=1)
    local = np.maximum(most / table.expert_parallel_size, 1.0)
    whole = flag(table, "shards_whole_experts") & (ranks <= local)
    return np.where(whole, local / np.ceil(local / ranks), ranks)


def state_bytes(
    problem: Problem, table: StrategyTable, stages: StageRows, weights: LocalWeights, shards: Sharding
) -> StateBytes:
    """Bytes that stay for the whole step."""
    row = stages.row
    gradient_bytes = dtype_bytes(table.gradient_dtype)
    trained_bytes = trained_weight_bytes(problem, table)
    on_device = 1.0 - np.where(table.is_choice("offload", "optimizer-and-parameters", "nvme"), 1.0, 0.0)
    states_here = 1.0 - np.where(table.offloads_states, table.offload_fraction, 0.0)
    per_state = state_bytes_per_weight(problem, table)

    def total(
        bytes_per_weight: FloatColumn, sharded: BoolColumn, dense: FloatColumn, expert: FloatColumn
    ) -> FloatColumn:
        return shards.held(bytes_per_weight, sharded, dense, expert, row)

    def trained(bytes_per_weight: FloatColumn, sharded: BoolColumn) -> FloatColumn:
        return total(bytes_per_weight, sharded, weights.trainable_dense, weights.trainable_expert)

    parameters = total(stored_bytes(table) * on_device, shards.weights, weights.dense, weights.expert)
    narrow = table.is_choice("parameter_dtype", "fp8")
    if narrow.any():
        # Only the blocks' matrices are stored so (fp8_model_init): embedding and head stay in 16 bit.
        wider = np.where(narrow, _SIXTEEN_BITS - stored_bytes(table), 0.0) * on_device
        outside = weights.dense + weights.expert - weights.matrices
        parameters += total(wider, shards.weights, outside, np.zeros_like(outside))
    if is_quantised(problem):
        constants = CONSTANT_BYTES * stage_sums(stages, [quantised_weights(b) for b in problem.model.blocks])
        divided = shards.weights & flag(table, "shards_quantisation_constants")
        parameters += constants / shards.dense_divisor(divided)[row]
    if problem.workload.fine_tuning is not None:
        parameters += trained(trained_bytes * on_device, shards.weights)
    secondary = table.secondary_shard_size > 1
    if secondary.any():
        second = np.where(secondary, _SECONDARY_BYTES / table.secondary_shard_size, 0.0)
        parameters += second[row] * (weights.dense + weights.expert)
    gradients = trained(gradient_bytes * _gradients_on_device(table), shards.gradients)
    if problem.workload.fine_tuning is not None:
        gradients += _frozen_gradients(problem, table, gradient_bytes, shards)[row] * weights.matrices
    states = trained(per_state * states_here, shards.states)
    if problem.workload.fine_tuning is not None:
        adapters = fp32_adapters(problem, table, stages)
        parameters += (_FP32_BYTES - trained_bytes)[row] * adapters
        gradients += (_FP32_BYTES - gradient_bytes)[row] * adapters
        if problem.workload.optimizer not in ("adafactor", "adamw-8bit"):
            states += (_fp32_moments(problem) - per_moment(problem, table))[row] * adapters
    if problem.workload.optimizer == "adamw-8bit":
        wider = np.where(flag(table, "embeddings_step_in_fp32"), _fp32_moments(problem) - per_state, 0.0) * states_here
        embedding = stages.on_first(end_weights(problem, table).trainable_first)
        states += total(wider, shards.states, embedding, np.zeros_like(embedding))
    if problem.workload.optimizer in MATRIX_OPTIMIZERS:
        spared = spared_moments(problem, table, stages, weights, per_moment(problem, table))
        states -= total(states_here, shards.states, spared.dense, spared.expert)
        by_tensor = flag(table, "muon_by_tensor") & shards.states
        if problem.workload.optimizer == "muon" and by_tensor.any():
            held = per_state[row] * weights.trainable_dense - spared.dense
            one = np.minimum(largest_tensor_states(problem, table, stages, per_state), held)
            uncut = np.maximum(one - held / shards.dense_ranks[row], 0.0)
            states += np.where(by_tensor, states_here, 0.0)[row] * uncut
    return StateBytes(
        parameters, gradients, states, _step_gradients(table, stages, gradient_bytes, states_here, trained, shards)
    )


def fp32_adapters(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) elements of adapters that the framework holds in fp32 beside 16- or 4-bit weights."""
    wide = flag(table, "adapters_in_fp32")[stages.row]
    return np.where(wide, adapter_weights(problem, table, stages), 0.0)


def _fp32_moments(problem: Problem) -> float:
    """Bytes of the moments of a weight in fp32."""
    return MOMENTS[problem.workload.optimizer] * _FP32_BYTES


def _frozen_gradients(
    problem: Problem, table: StrategyTable, gradient_bytes: FloatColumn, shards: Sharding
) -> FloatColumn:
    """Bytes of the gradient of a frozen weight. Under QLoRA adapters are flattened apart from packed weights, which are
    never trained (PEFT's fsdp_auto_wrap_policy)."""
    if is_quantised(problem):
        return np.zeros(len(table))
    whole = (problem.micro_batches(table) > 1) | ~shards.gradients
    each = gradient_bytes / shards.dense_divisor(~whole)
    return np.where(flag(table, "frozen_weights_have_gradients"), each, 0.0)


def _step_gradients(
    table: StrategyTable,
    stages: StageRows,
    gradient_bytes: FloatColumn,
    states_here: FloatColumn,
    trained: Callable[[FloatColumn, BoolColumn], FloatColumn],
    shards: Sharding,
) -> FloatColumn:
    copies = flag(table, "copies_gradients_to_fp32") & (gradient_bytes < _MASTER_BYTES)
    if not copies.any():
        return np.zeros(len(stages))
    step = trained(np.where(copies, _MASTER_BYTES * states_here, 0.0), shards.states)
    limit = np.where(table.zero_stage == 3, number(table, "step_elements"), 0.0)
    return np.minimum(step, np.where(limit > 0, _MASTER_BYTES * limit, np.inf)[stages.row])


def trained_weight_bytes(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Bytes of a trained weight; adapters are kept in 16 bit beside 4- and 16-bit weights."""
    stored = stored_bytes(table)
    return np.maximum(stored, 2.0) if problem.workload.fine_tuning is not None else stored


def state_bytes_per_weight(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Moments, and the fp32 master of a weight that is stored in fewer bits, wherever they lie."""
    masters = flag(table, "keeps_fp32_masters") & (trained_weight_bytes(problem, table) < _MASTER_BYTES)
    return per_moment(problem, table) + np.where(masters, _MASTER_BYTES, 0.0)


def per_moment(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Bytes of a weight's moments."""
    optimizer = problem.workload.optimizer
    if optimizer == "adafactor":
        each = np.full(len(table), ADAFACTOR_STATE_BYTES)
    elif optimizer == "adamw-8bit":
        each = np.full(len(table), 1.0 + 4.0 / _EIGHT_BIT_BLOCK)
    else:
        each = dtype_bytes(table.optimizer_state_dtype)
    return MOMENTS[optimizer] * each


def _gradients_on_device(table: StrategyTable) -> FloatColumn:
    """ZeRO-Offload (arXiv 2101.06840, section 4.2) moves reduced gradients to the host as they are made."""
    moved = table.offloads_states & (table.zero_stage >= 2)
    return np.where(moved & flag(table, "offloads_gradients"), 1.0 - table.offload_fraction, 1.0)
