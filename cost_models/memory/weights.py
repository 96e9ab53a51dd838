"""Weights that one rank of a stage works with, before data-parallel sharding: counted in parameters.

Tensor parallelism splits a column-parallel matrix with its bias and a row-parallel matrix without it
(arXiv 1909.08053, section 3); experts lie on expert-parallel ranks and are split by expert-tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.adapters import adapted_linears
from cost_models.architecture import Attention, Block, FeedForward, Linear
from cost_models.problem import Problem
from cost_models.quantisation import PACKING, is_quantised, quantised_weights
from cost_models.stages import StageRows
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.vocabulary import padded_vocabulary, vocabulary_ranks
from cost_models.workload import FineTuning


@dataclass(frozen=True, slots=True)
class Split:
    """Parameters by what divides them."""

    tensor: float = 0.0
    whole: float = 0.0
    expert: float = 0.0
    """Divided by expert parallelism and expert-tensor parallelism."""

    def __add__(self, other: Split) -> Split:
        return Split(self.tensor + other.tensor, self.whole + other.whole, self.expert + other.expert)


@dataclass(frozen=True)
class LocalWeights:
    """m stage rows: parameters of one rank, without data-parallel sharding; NF4 ones as the elements they lie in."""

    dense: FloatColumn
    expert: FloatColumn
    trainable_dense: FloatColumn
    trainable_expert: FloatColumn
    matrices: FloatColumn
    """Elements of the blocks' matrices (what fp8 and autocast keep copies of)."""


@dataclass(frozen=True)
class HeaviestWeights:
    """n strategies: the largest of each column of `LocalWeights` over a strategy's stages."""

    dense: FloatColumn
    expert: FloatColumn
    trainable_dense: FloatColumn
    trainable_expert: FloatColumn


@dataclass(frozen=True)
class BlockWeights:
    """n strategies: parameters of the largest block on one rank, without data-parallel sharding; NF4 ones as above."""

    dense: FloatColumn
    expert: FloatColumn
    down: FloatColumn
    """Of its last matrices, whose gradients backward makes first."""

    @property
    def total(self) -> FloatColumn:
        """All of the block."""
        return self.dense + self.expert


@dataclass(frozen=True)
class EndWeights:
    """n strategies: what surrounds the blocks, on one rank, without data-parallel sharding."""

    first: FloatColumn
    """Embedding and its company."""
    last: FloatColumn
    """Final norm and head, of an untied model."""
    tied_copy: FloatColumn
    """What the last stage of a pipeline holds besides `last`: the tied embedding matrix."""
    trainable_first: FloatColumn
    trainable_last: FloatColumn


def block_weights(problem: Problem, table: StrategyTable) -> BlockWeights:
    """The largest block: what is gathered at once under ZeRO-3."""
    dense, expert, down = np.zeros(len(table)), np.zeros(len(table)), np.zeros(len(table))
    ranks = expert_ranks(table)
    for block in problem.model.blocks:
        split = _stored_split(problem, block)
        candidate = split.tensor / table.tensor_parallel_size + split.whole
        routed = split.expert / ranks
        larger = candidate + routed > dense + expert
        dense, expert = np.where(larger, candidate, dense), np.where(larger, routed, expert)
        last = _sum(_linear_split(w) for w in block.linears if w.name == "down")
        shards = last.tensor / table.tensor_parallel_size + last.expert / ranks
        down = np.where(larger, shards, down)
    return BlockWeights(dense, expert, down)


def end_weights(problem: Problem, table: StrategyTable) -> EndWeights:
    """Embedding and head of one rank, vocabulary padded and split over tensor-parallel ranks."""
    model, tensor = problem.model, vocabulary_ranks(problem.model, table)
    share = padded_vocabulary(model, table) / (model.vocab_size * tensor)
    embedding = model.embedding_parameters * share
    first = embedding + model.position_parameters + model.input_parameters
    head = (model.head.parameters if model.head else 0) * share
    last = head + model.final_norm_parameters + model.output_parameters
    tuning = problem.workload.fine_tuning
    if tuning is None:
        trainable_first, trainable_last = first, last
    else:
        trainable_first = embedding if "embedding" in tuning.modules_to_save else np.zeros(len(table))
        saved_head = embedding if model.tied_embeddings else head
        trainable_last = saved_head if "head" in tuning.modules_to_save else np.zeros(len(table))
    tied = embedding if model.tied_embeddings else np.zeros(len(table))
    return EndWeights(first, last, tied, trainable_first, trainable_last)


def local_weights(problem: Problem, table: StrategyTable, stages: StageRows, ends: EndWeights) -> LocalWeights:
    """Weights of every stage row. A tied matrix has a copy on both ends of a pipeline (arXiv 1909.08053, section 5)."""
    blocks_dense, expert = _on_rank(table, stages, [_stored_split(problem, block) for block in problem.model.blocks])
    last = ends.last + np.where(table.pipeline_parallel_size > 1, ends.tied_copy, 0.0)
    outside = stages.on_first(ends.first) + stages.on_last(last)
    dense = blocks_dense + outside
    tuning = problem.workload.fine_tuning
    if tuning is None:
        return LocalWeights(dense, expert, dense, expert, blocks_dense + expert)
    adapters = [adapter_split(block, tuning) for block in problem.model.blocks]
    trained, trained_expert = _on_rank(table, stages, adapters)
    trained = trained + stages.on_first(ends.trainable_first) + stages.on_last(ends.trainable_last)
    return LocalWeights(dense, expert, trained, trained_expert, blocks_dense + expert)


def adapter_weights(problem: Problem, table: StrategyTable, stages: StageRows) -> FloatColumn:
    """(m,) elements of all adapters of one rank."""
    tuning = problem.workload.fine_tuning
    if tuning is None:
        return np.zeros(len(stages))
    dense, expert = _on_rank(table, stages, [adapter_split(block, tuning) for block in problem.model.blocks])
    return dense + expert


def _on_rank(table: StrategyTable, stages: StageRows, splits: Sequence[Split]) -> tuple[FloatColumn, FloatColumn]:
    """(m,) dense and expert parameters of one rank, given the split of each kind of block."""
    tensor, routed = (1.0 / table.tensor_parallel_size)[stages.row], (1.0 / expert_ranks(table))[stages.row]
    dense = stage_sums(stages, [split.tensor for split in splits]) * tensor
    dense = dense + stage_sums(stages, [split.whole for split in splits])
    return dense, stage_sums(stages, [split.expert for split in splits]) * routed


def heaviest_weights(weights: LocalWeights, stages: StageRows) -> HeaviestWeights:
    """What the fullest ranks load, save and offload; dense and expert weights may peak on different stages."""
    names = ("dense", "expert", "trainable_dense", "trainable_expert")
    columns = {id(getattr(weights, name)): getattr(weights, name) for name in names}
    largest = {key: np.maximum.reduceat(column, stages.start) for key, column in columns.items()}
    return HeaviestWeights(**{name: largest[id(getattr(weights, name))] for name in names})


def expert_ranks(table: StrategyTable) -> FloatColumn:
    """Ranks that one set of experts is split over."""
    return (table.expert_parallel_size * table.expert_tensor_parallel_size).astype(np.float64)


def stage_sums(stages: StageRows, counts: Sequence[float]) -> FloatColumn:
    """(m,) sum over the layers of each stage of a number for each kind of block."""
    result: FloatColumn = stages.layers.astype(np.float64) @ np.array(counts, dtype=np.float64)
    return result


@lru_cache(maxsize=1024)
def block_split(block: Block) -> Split:
    """All parameters of a block."""
    total = _attention_split(block.attention)
    if block.cross_attention:
        total += _attention_split(block.cross_attention)
    total += Split(whole=block.norm_parameters + block.other_parameters)
    mixture = block.feed_forward
    if isinstance(mixture, FeedForward):
        return total + _sum(_linear_split(w) for w in mixture.linears)
    total += Split(expert=mixture.routed.parameters, whole=mixture.router.parameters + mixture.other_parameters)
    if mixture.shared:
        total += _sum(_linear_split(w) for w in mixture.shared.linears)
    return total + Split(whole=mixture.shared_gate.parameters if mixture.shared_gate else 0.0)


@lru_cache(maxsize=1024)
def adapter_split(block: Block, tuning: FineTuning) -> Split:
    """Adapters of a block: rank x in and out x rank for each adapted matrix (arXiv 2106.09685, section 4.1)."""
    return _sum(_adapter(linear, tuning.rank) for linear in adapted_linears(block, tuning))


def _stored_split(problem: Problem, block: Block) -> Split:
    """Elements that hold the block's weights. QLoRA runs without tensor and expert parallelism (rules)."""
    split = block_split(block)
    if not is_quantised(problem):
        return split
    experts = block.experts.routed.parameters if block.experts else 0
    saved = 1 - PACKING
    return split + Split(whole=-saved * (quantised_weights(block) - experts), expert=-saved * experts)


def _attention_split(attention: Attention) -> Split:
    linears = _sum(_linear_split(w) for w in attention.linears)
    return linears + Split(tensor=attention.other_parameters, whole=attention.norm_parameters)


def _linear_split(linear: Linear) -> Split:
    if linear.split == "none":
        return Split(whole=linear.parameters)
    if linear.split == "column":
        return Split(tensor=linear.parameters)
    bias = linear.copies * linear.out_features * linear.bias
    return Split(tensor=linear.parameters - bias, whole=bias)


def _adapter(linear: Linear, rank: int) -> Split:
    down, up = rank * linear.in_features * linear.copies, rank * linear.out_features * linear.copies
    if linear.copies > 1:
        return Split(expert=down + up)
    if linear.split == "column":
        return Split(whole=down, tensor=up)
    if linear.split == "row":
        return Split(tensor=down, whole=up)
    return Split(whole=down + up)


def _sum(splits: Iterable[Split]) -> Split:
    total = Split()
    for split in splits:
        total += split
    return total
