"""Optimizers that treat matrices otherwise than other weights: Muon and Adafactor.

Muon keeps one momentum of each hidden matrix; embedding, head, norms and biases stay with AdamW (arXiv 2502.16982,
section 2.1). Adafactor keeps sums over the rows and columns of a matrix's squared gradients in fp32, a whole second
moment only of vectors, and no first one (arXiv 1804.04235, algorithm 4; transformers' Adafactor without beta1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.adapters import adapted_linears
from cost_models.architecture import Block, Linear
from cost_models.architecture import Split as SplitKind
from cost_models.memory.facts import flag
from cost_models.memory.weights import BlockWeights, LocalWeights, adapter_split, block_split, stage_sums
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable, dtype_bytes
from cost_models.vocabulary import padded_vocabulary, vocabulary_ranks

MATRIX_OPTIMIZERS: Final = ("muon", "adafactor")
ADAFACTOR_STATE_BYTES: Final = 4.0
"""transformers makes the sums in fp32, whatever the weights are in."""
_ADAFACTOR_TEMPORARIES: Final = 2.0
"""fp32 tensors of a parameter's size: the update, and the square or the product it is made from."""
_UPDATE_BYTES: Final = 4.0
_ORTHOGONAL_BYTES: Final = 2.0
"""Newton-Schulz iterates in bf16 (arXiv 2502.16982, section 2.1)."""


@dataclass(frozen=True)
class MatrixSums:
    """m stage rows: a sum over hidden matrices, dense ones and those of experts, on one rank, before sharding."""

    dense: FloatColumn
    expert: FloatColumn


def spared_moments(
    problem: Problem, table: StrategyTable, stages: StageRows, weights: LocalWeights, per_vector: FloatColumn
) -> MatrixSums:
    """Bytes that matrices do without, against an optimizer with `per_vector` (n,) bytes of moments of every weight."""
    row = stages.row
    elements = _matrix_sums(problem, table, stages, _elements)
    each = per_vector[row]
    if problem.workload.optimizer == "muon":
        spared = dtype_bytes(table.optimizer_state_dtype)[row]
        return MatrixSums(spared * elements.dense, spared * elements.expert)
    factored = np.where(flag(table, "flat_optimizer")[row], 0.0, 1.0)
    edges = _matrix_sums(problem, table, stages, _edges)
    ends = weights.trainable_dense - _trained_of_blocks(problem, table, stages)
    # Embedding and head are as wide as the hidden state; their rows are split over tensor ranks.
    hidden = float(problem.model.hidden_size)
    end_edges = np.where(ends > 0, ends / hidden + hidden, 0.0)
    kept = ADAFACTOR_STATE_BYTES
    dense = each * (elements.dense + ends) - kept * (edges.dense + end_edges)
    return MatrixSums(factored * dense, factored * (each * elements.expert - kept * edges.expert))


def step_temporaries(
    problem: Problem, table: StrategyTable, stages: StageRows, weights: LocalWeights, block: BlockWeights
) -> FloatColumn:
    """(m,) what one step of Muon or Adafactor holds besides, parameter by parameter, before sharding for Adafactor."""
    if problem.workload.optimizer == "muon":
        sizes = [sorted((w.in_features, w.out_features)) for b in problem.model.blocks for w in _trained(problem, b)]
        # The update, its 16-bit copy and the next iterate; their Gram matrix and its polynomial.
        most = max(
            long * short * (_UPDATE_BYTES + 2 * _ORTHOGONAL_BYTES) + 2 * _ORTHOGONAL_BYTES * short**2
            for short, long in sizes
        )
        return np.full(len(stages), float(most))
    trained = weights.trainable_dense + weights.trainable_expert
    matrices = [w for b in problem.model.blocks for w in _trained(problem, b)]
    largest = max(float(w.in_features * w.out_features * w.copies) for w in matrices)
    ends = trained - _trained_of_blocks(problem, table, stages)
    one = np.minimum(np.maximum(largest, ends), trained)
    # Where weights are flattened, one parameter is a block's or a whole group's.
    flat = np.where(flag(table, "flattens_weights")[stages.row], trained, np.minimum(block.total[stages.row], trained))
    sizes_of = np.where(flag(table, "flat_optimizer")[stages.row], flat, one)
    result: FloatColumn = _ADAFACTOR_TEMPORARIES * ADAFACTOR_STATE_BYTES * sizes_of
    return result


def largest_tensor_states(
    problem: Problem, table: StrategyTable, stages: StageRows, per_vector: FloatColumn
) -> FloatColumn:
    """(m,) states of the largest tensor of the dense layout: one rank keeps all of them where tensors are not cut.

    `per_vector`: (n,) bytes of a weight's states outside of the hidden matrices.
    """
    tensor = table.tensor_parallel_size.astype(np.float64)
    rows = padded_vocabulary(problem.model, table) / vocabulary_ranks(problem.model, table)
    end = rows * problem.model.hidden_size * per_vector
    matrix = np.zeros(len(table))
    for block in problem.model.blocks:
        for linear in _trained(problem, block):
            if linear.copies == 1:
                split = np.ones(len(table)) if linear.split == "none" else tensor
                matrix = np.maximum(matrix, _elements(linear, split))
    matrix = matrix * (per_vector - dtype_bytes(table.optimizer_state_dtype))
    trained_end = (stages.first | stages.last) & (problem.workload.fine_tuning is None)
    return np.maximum(matrix[stages.row], np.where(trained_end, end[stages.row], 0.0))


def matrix_elements(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) trained elements of hidden matrices on one rank, before sharding."""
    sums = _matrix_sums(problem, table, stages, _elements)
    return sums.dense + sums.expert


def _trained(problem: Problem, block: Block) -> tuple[Linear, ...]:
    """Trained matrices of a block: all, or the two of each adapter, as linear layers."""
    tuning = problem.workload.fine_tuning
    if tuning is None:
        return block.linears
    found = []
    for w in adapted_linears(block, tuning):
        inward: SplitKind = "row" if w.split == "row" else "none"
        outward: SplitKind = "column" if w.split == "column" else "none"
        found.append(Linear(w.name, w.in_features, tuning.rank, split=inward, copies=w.copies))
        found.append(Linear(w.name, tuning.rank, w.out_features, split=outward, copies=w.copies))
    return tuple(found)


def _elements(linear: Linear, split: FloatColumn) -> FloatColumn:
    elements: FloatColumn = linear.in_features * linear.out_features / split
    return elements


def _edges(linear: Linear, split: FloatColumn) -> FloatColumn:
    inputs = linear.in_features / (split if linear.split == "row" else np.ones_like(split))
    edges: FloatColumn = inputs + linear.out_features / (split if linear.split == "column" else np.ones_like(split))
    return edges


def _matrix_sums(
    problem: Problem, table: StrategyTable, stages: StageRows, size: Callable[[Linear, FloatColumn], FloatColumn]
) -> MatrixSums:
    """Sum over the trained matrices of each stage of a size of each, given over how many ranks it is split."""
    tensor, expert_tensor = (
        getattr(table, name).astype(np.float64) for name in ("tensor_parallel_size", "expert_tensor_parallel_size")
    )
    dense, expert = np.zeros(len(stages)), np.zeros(len(stages))
    for kind, block in enumerate(problem.model.blocks):
        of_dense, of_expert = np.zeros(len(table)), np.zeros(len(table))
        for linear in _trained(problem, block):
            ones = np.ones(len(table))
            if linear.copies > 1:
                of_expert += size(linear, expert_tensor) * linear.copies / table.expert_parallel_size
            else:
                of_dense += size(linear, ones if linear.split == "none" else tensor)
        layers = stages.layers[:, kind].astype(np.float64)
        dense += of_dense[stages.row] * layers
        expert += of_expert[stages.row] * layers
    return MatrixSums(dense, expert)


def _trained_of_blocks(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) trained dense weights of the blocks on one rank."""
    tuning, blocks = problem.workload.fine_tuning, problem.model.blocks
    splits = [block_split(block) if tuning is None else adapter_split(block, tuning) for block in blocks]
    tensor = (1.0 / table.tensor_parallel_size)[stages.row]
    return stage_sums(stages, [s.tensor for s in splits]) * tensor + stage_sums(stages, [s.whole for s in splits])
