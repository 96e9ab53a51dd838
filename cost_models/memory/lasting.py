"""Bytes that do not depend on the micro-batch: weights, gradients, states, buffers, and what the host keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.memory.buffers import Buffers, buffers, has_replica_buckets
from cost_models.memory.facts import flag, number, stage_flags
from cost_models.memory.host import host_needs
from cost_models.memory.load import device_load_bytes
from cost_models.memory.moments import (
    MATRIX_OPTIMIZERS,
    MatrixSums,
    matrix_elements,
    spared_moments,
    step_temporaries,
)
from cost_models.memory.overhead import communicator_bytes, workspace_bytes
from cost_models.memory.states import Sharding, fp32_adapters, per_moment, sharding, state_bytes
from cost_models.memory.tokens import compute_bytes
from cost_models.memory.weights import (
    BlockWeights,
    LocalWeights,
    block_weights,
    end_weights,
    heaviest_weights,
    local_weights,
)
from cost_models.problem import Problem
from cost_models.quantisation import NVFP4_BYTES
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, StrategyTable, dtype_bytes

LASTING_COLUMNS: Final = (
    "framework",
    "data_parallel_size",
    "data_parallel_replicate_size",
    "secondary_shard_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "layers_per_stage",
    "context_parallel_size",
    "expert_parallel_size",
    "expert_tensor_parallel_size",
    "zero_stage",
    "offload",
    "offload_fraction",
    "precision",
    "fp8_recipe",
    "parameter_dtype",
    "gradient_dtype",
    "optimizer_state_dtype",
    "overlap_communication",
    "gradient_as_bucket_view",
    "expandable_segments",
    "checkpoint_loading",
    "checkpoint_saving",
)
"""All that `lasting_bytes` reads of a strategy, besides whether micro-batches are accumulated and `kept_casts`."""

_FP32_BYTES: Final = 4.0
_FOREACH_WITH_TEMPORARIES: Final = ("adamw", "adam", "muon")
_EITHER_LAYOUT: Final = ("blackwell",)
"""GPUs whose products take fp8 operands in either layout: weights with one scale a tensor need no transposed copy
(Transformer Engine's is_non_tn_fp8_gemm_supported: compute capability 10.0 to 11.x)."""


@dataclass(frozen=True)
class Lasting:
    """m stage rows, bytes."""

    parameters: FloatColumn
    gradients: FloatColumn
    early_gradients: FloatColumn
    """What exists of them when the backward at the peak begins."""
    pooled_gradients: FloatColumn
    """Gradients in a pool of their own, which stays reserved for them while they do not exist."""
    optimizer_states: FloatColumn
    weight_copies: FloatColumn
    """8-bit or 16-bit copies of weights that live through forward and backward."""
    stepped_gradients: FloatColumn
    """What is left of them when the optimizer steps."""
    step_gradients: FloatColumn
    step_states: FloatColumn
    """Temporaries of the optimizer's step."""
    head_gradients: FloatColumn
    """Kept gradients of the head, which exist before any block's, where none existed before backward."""
    late_gradients: FloatColumn
    """What is kept when the last block's backward begins: all but its own and the embedding's."""
    forward_copies: FloatColumn
    """16-bit copies of checkpointed layers, which autocast drops when forward is over."""
    head_copies: FloatColumn
    """The 16-bit copy of the head's matrix, from its forward to its backward."""
    buffers: Buffers
    outside: FloatColumn
    """Communicators, which the allocator does not serve."""
    workspace: FloatColumn
    expandable: BoolColumn
    """The allocator has expandable segments."""


@dataclass(frozen=True)
class LastingNeeds:
    """n strategies, bytes."""

    device_load: FloatColumn
    host: Mapping[str, FloatColumn]
    """By HOST_PARTS, a node."""
    nvme: FloatColumn


def lasting_bytes(problem: Problem, table: StrategyTable, stages: StageRows) -> tuple[Lasting, LastingNeeds]:
    """What stays through a step on each stage, and what it asks of loading, of the host and of NVMe."""
    row = stages.row
    shards = sharding(problem, table)
    ends = end_weights(problem, table)
    block = block_weights(problem, table)
    weights = local_weights(problem, table, stages, ends)
    states = state_bytes(problem, table, stages, weights, shards)
    accumulated = problem.micro_batches(table) > 1
    fresh = _fresh_gradients(table, accumulated)
    cast = _cast_bytes(problem, table)
    casts_kept = kept_casts(problem, table)
    last = stages.on_last(ends.last)
    made = np.where(fresh, dtype_bytes(table.gradient_dtype), 0.0)
    new = made / shards.dense_divisor(shards.gradients)
    of_block = new * block.dense + made / shards.expert_divisor(shards.gradients) * block.expert
    last_made = of_block[row] + stages.on_first(new * ends.trainable_first)
    lasting = Lasting(
        parameters=states.parameters,
        gradients=states.gradients,
        early_gradients=np.where(fresh[row], 0.0, states.gradients),
        pooled_gradients=np.where(
            (shards.gradients & flag(table, "reduces_on_own_stream"))[row], states.gradients, 0.0
        ),
        optimizer_states=states.optimizer_states,
        weight_copies=(_copy_bytes(problem, table) + cast * casts_kept)[row] * weights.matrices
        + _adapter_copies(problem, table, stages),
        stepped_gradients=_stepped_gradients(table, stages, weights, shards, states.gradients),
        step_gradients=states.step_gradients,
        step_states=_step_states(problem, table, stages, weights, block, shards.dense_divisor(shards.states)),
        head_gradients=stages.on_last(new * ends.trainable_last),
        late_gradients=np.maximum(states.gradients - last_made, 0.0),
        forward_copies=(cast * (1.0 - casts_kept))[row] * weights.matrices,
        head_copies=cast[row] * last,
        buffers=buffers(
            *(table, stages, weights, block, ends, shards),
            element=compute_bytes(table),
            fresh=fresh,
            accumulated=accumulated,
            recast=np.where(casts_kept < 1.0, cast, 0.0),
        ),
        outside=communicator_bytes(table)[row],
        workspace=workspace_bytes(problem, table, stages),
        expandable=table.expandable_segments[row],
    )
    heaviest = heaviest_weights(weights, stages)
    host = host_needs(problem, table, heaviest, shards, _least_spared(problem, table, stages, weights))
    return lasting, LastingNeeds(device_load_bytes(table, stages, heaviest, states), host.by_part, host.nvme)


def _least_spared(
    problem: Problem, table: StrategyTable, stages: StageRows, weights: LocalWeights
) -> MatrixSums | None:
    """(n,) moments that matrices of any stage do without; exact where there is one stage."""
    if problem.workload.optimizer not in MATRIX_OPTIMIZERS:
        return None
    spared = spared_moments(problem, table, stages, weights, per_moment(problem, table))
    return MatrixSums(np.minimum.reduceat(spared.dense, stages.start), np.minimum.reduceat(spared.expert, stages.start))


def _stepped_gradients(
    table: StrategyTable, stages: StageRows, weights: LocalWeights, shards: Sharding, gradients: FloatColumn
) -> FloatColumn:
    """(m,) stage 1 keeps its share only of whole gradients before it steps (DeepSpeed's free_grad_in_param_list)."""
    freed = (table.zero_stage == 1) & (number(table, "bucket_elements") > 0)
    trained = (weights.trainable_dense, weights.trainable_expert)
    share = shards.held(dtype_bytes(table.gradient_dtype), freed, *trained, stages.row)
    return np.where(freed[stages.row], share, gradients)


def _fresh_gradients(table: StrategyTable, accumulated: BoolColumn) -> BoolColumn:
    """Gradients that do not exist before the backward at the peak: set to None after each step, one micro-batch."""
    # Views of buckets stay.
    views = has_replica_buckets(table) & table.gradient_as_bucket_view
    fresh: BoolColumn = ~stage_flags(table, "persistent_gradients") & ~views & ~accumulated
    return fresh


def _copy_bytes(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Bytes of a matrix element in copies that live through forward and backward."""
    copies = number(table, "fp8_weight_copies")
    fp8 = copies
    if problem.cluster.gpu.generation in _EITHER_LAYOUT:
        fp8 = np.where(table.is_choice("fp8_recipe", "tensorwise"), np.minimum(copies, 1.0), copies)
    # A weight that is stored in 8 bit is one of them itself.
    fp8 = np.maximum(fp8 - np.where(table.is_choice("parameter_dtype", "fp8"), 1.0, 0.0), 0.0)
    narrow = np.where(table.is_choice("precision", "fp8"), fp8, 0.0)
    return np.where(table.is_choice("precision", "nvfp4"), NVFP4_BYTES * copies, narrow)


def _cast_bytes(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Bytes of a matrix element in the 16-bit copy that autocast keeps from a layer's forward to its backward."""
    cast = (
        flag(table, "autocast_weight_copies")
        & (dtype_bytes(table.parameter_dtype) == 4.0)
        & ~table.is_choice("precision", "fp32")
    )
    frozen = problem.workload.fine_tuning is not None
    return np.where(cast & (not frozen), 2.0, 0.0)


def kept_casts(problem: Problem, table: StrategyTable) -> FloatColumn:
    """(n,) share of the layers whose 16-bit copies are kept for backward: recomputation casts weights again."""
    casts = flag(table, "autocast_weight_copies") & ~table.is_choice("activation_checkpointing", "none")
    share = np.minimum(table.checkpointed_layers, problem.model.layers) / problem.model.layers
    return np.where(casts, 1.0 - share, 1.0)


def _adapter_copies(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """16-bit copies of fp32 adapters (torch.autocast's weight cache)."""
    if problem.workload.fine_tuning is None:
        return np.zeros(len(stages))
    each = np.where(table.is_choice("precision", "fp32"), 0.0, 2.0)
    return each[stages.row] * fp32_adapters(problem, table, stages)


def _step_states(
    problem: Problem,
    table: StrategyTable,
    stages: StageRows,
    weights: LocalWeights,
    block: BlockWeights,
    ranks: FloatColumn,
) -> FloatColumn:
    """(m,) temporaries of the optimizer's step; `ranks` (n,) share one copy of the states."""
    trained = weights.trainable_dense + weights.trainable_expert
    each, shared = _step_bytes(problem, table), ranks[stages.row]
    if problem.workload.optimizer not in MATRIX_OPTIMIZERS:
        wider = np.where(each > 0, np.maximum(_FP32_BYTES - each, 0.0), 0.0)
        of_adapters = wider[stages.row] * fp32_adapters(problem, table, stages)
        return (each[stages.row] * trained + of_adapters) / shared
    here = np.where(table.is_choice("offload", "none", "activations"), 1.0, 0.0)[stages.row]
    one_by_one = here * step_temporaries(problem, table, stages, weights, block)
    if problem.workload.optimizer == "muon":
        # Whole matrices, whatever is sharded; AdamW steps the others.
        others = trained - matrix_elements(problem, table, stages)
        return one_by_one + each[stages.row] * others / shared
    return one_by_one / shared


def _step_bytes(problem: Problem, table: StrategyTable) -> FloatColumn:
    """(n,) of a weight: torch's foreach Adam makes the square roots of all second moments at once
    (torch/optim/adam.py); SGD and bitsandbytes' 8-bit kernels update in place."""
    if problem.workload.optimizer not in _FOREACH_WITH_TEMPORARIES:
        return np.zeros(len(table))
    here = table.is_choice("offload", "none", "activations")
    return np.where(flag(table, "foreach_optimizer") & here, dtype_bytes(table.optimizer_state_dtype), 0.0)
