"""The two ends of the model for one micro-batch: embedding on the first stage; head and loss on the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.problem import Problem
from cost_models.strategy import FloatColumn
from cost_models.time.cases import LayerCases
from cost_models.time.collectives import Network
from cost_models.time.communication import CaseGroups, element_bytes
from cost_models.time.device import Device
from cost_models.time.operators import Gemm, aligned_share, gemm_seconds
from cost_models.vocabulary import padded_vocabulary, scored_rows, vocabulary_ranks

LOSS_BYTES: Final = (38.0, 14.0)
"""Per logit, forward and backward: cast to fp32, maximum, subtraction, exponential, sum, product (Megatron-LM's
vocab_parallel_cross_entropy; torch's cross_entropy on fp32 logits moves about as much)."""
FUSED_LOSS_BYTES: Final = (4.0, 4.0)
"""Chunked or fused cross-entropy: reads the logits, writes their gradient in place (Liger kernel, arXiv 2410.10989)."""
EMBEDDING_BYTES: Final = (4.0, 10.0)
"""Per element: a row read and written; backward adds into the gradient of the table (read, add, write in fp32)."""
END_OPERATORS: Final = 20.0
"""Assumed: the final norm, the projection, and the loss with its views and masks."""

EMBEDDING_COLLECTIVES: Final = 1.0
"""Forward and backward each, under tensor parallelism: the sum of the looked-up rows, and its transpose."""
HEAD_COLLECTIVES: Final = (4.0, 2.0)
"""Forward and backward: the gathered input and three small sums of the loss (maximum, label's logit, sum of
exponentials: Megatron-LM's vocab_parallel_cross_entropy); the input gathered again and the sum of its gradient."""


@dataclass(frozen=True)
class EndSeconds:
    """One end; columns (u,)."""

    forward: FloatColumn
    input_gradient: FloatColumn
    weight_gradient: FloatColumn
    tensor: FloatColumn
    weights: FloatColumn
    """On one rank."""
    trained: FloatColumn

    @property
    def once(self) -> FloatColumn:
        """All of one micro-batch."""
        return self.forward + self.input_gradient + self.weight_gradient + self.tensor


def embedding_seconds(
    problem: Problem, cases: LayerCases, network: Network, groups: CaseGroups, device: Device
) -> EndSeconds:
    """Look-up and its gradient, split over the vocabulary by tensor parallelism; or the projection of patches."""
    model = problem.model
    if model.is_classifier:
        return _patch_seconds(problem, cases, device)
    # Encoder and decoder each look up a sequence.
    elements = (2.0 if model.is_encoder_decoder else 1.0) * cases.shard_tokens * model.hidden_size
    frozen = _frozen(problem, "embedding")
    rows = padded_vocabulary(model, cases.table) / cases.tensor
    weights = rows * model.hidden_size + model.position_parameters + model.input_parameters
    zero = np.zeros(len(cases))
    return EndSeconds(
        forward=device.memory_seconds(elements * EMBEDDING_BYTES[0])
        + END_OPERATORS / 4 * device.kernels.operator_seconds
        + cases.barrier_seconds(EMBEDDING_COLLECTIVES),
        input_gradient=zero + cases.barrier_seconds(EMBEDDING_COLLECTIVES),
        weight_gradient=zero if frozen else device.memory_seconds(elements * EMBEDDING_BYTES[1]),
        tensor=_tensor_passes(problem, cases, network, groups, passes=2.0),
        weights=weights,
        trained=zero if frozen else weights,
    )


def head_seconds(
    problem: Problem, cases: LayerCases, network: Network, groups: CaseGroups, device: Device
) -> EndSeconds:
    """Final norm, output projection over the padded vocabulary, and the loss."""
    model = problem.model
    hidden = np.full(len(cases), float(model.hidden_size))
    vocabulary = padded_vocabulary(model, cases.table) / vocabulary_ranks(model, cases.table)
    scored = scored_rows(model, cases.table, cases.tokens)
    ones = np.ones(len(cases))
    rate = device.wide_rate(cases.table.precision) * aligned_share(vocabulary)
    element = element_bytes(cases)
    forward, dgrad, wgrad = (
        gemm_seconds(gemm, rate, element, device)
        for gemm in (
            Gemm(scored, vocabulary, hidden, ones),
            Gemm(scored, hidden, vocabulary, ones),
            Gemm(vocabulary, hidden, scored, ones),
        )
    )
    loss = FUSED_LOSS_BYTES if problem.workload.fused_loss else LOSS_BYTES
    logits = scored * vocabulary
    frozen = _frozen(problem, "head")
    weights = model.hidden_size * vocabulary
    accumulated = weights * 2 * cases.gradient_bytes
    zero = np.zeros(len(cases))
    issue = END_OPERATORS * device.kernels.operator_seconds
    return EndSeconds(
        forward=forward + device.memory_seconds(logits * loss[0]) + issue + cases.barrier_seconds(HEAD_COLLECTIVES[0]),
        input_gradient=dgrad
        + device.memory_seconds(logits * loss[1])
        + issue
        + cases.barrier_seconds(HEAD_COLLECTIVES[1]),
        weight_gradient=zero if frozen else wgrad + device.memory_seconds(accumulated),
        tensor=zero if model.is_classifier else _tensor_passes(problem, cases, network, groups, passes=2.0),
        weights=weights,
        trained=zero if frozen else weights,
    )


def _patch_seconds(problem: Problem, cases: LayerCases, device: Device) -> EndSeconds:
    """A matrix product on every tensor rank, position embeddings added; an image has no gradient."""
    model, ones, zero = problem.model, np.ones(len(cases)), np.zeros(len(cases))
    rate, element = device.wide_rate(cases.table.precision), element_bytes(cases)
    rows, inputs, width = cases.tokens, ones * model.patch_elements, ones * model.hidden_size
    forward = gemm_seconds(Gemm(rows, width, inputs, ones), rate, element, device)
    gradient = gemm_seconds(Gemm(width, inputs, rows, ones), rate, element, device)
    elements = cases.shard_tokens * model.hidden_size
    frozen = _frozen(problem, "embedding")
    weights = ones * (model.embedding_parameters + model.position_parameters + model.input_parameters)
    return EndSeconds(
        forward=forward
        + device.memory_seconds(elements * EMBEDDING_BYTES[0])
        + END_OPERATORS / 4 * device.kernels.operator_seconds,
        input_gradient=zero,
        weight_gradient=zero if frozen else gradient + device.memory_seconds(2 * weights * cases.gradient_bytes),
        tensor=zero,
        weights=weights,
        trained=zero if frozen else weights,
    )


def _frozen(problem: Problem, part: str) -> bool:
    fine_tuning = problem.workload.fine_tuning
    return fine_tuning is not None and part not in fine_tuning.modules_to_save


def _tensor_passes(
    problem: Problem, cases: LayerCases, network: Network, groups: CaseGroups, *, passes: float
) -> FloatColumn:
    group = groups.tensor
    message = cases.tokens * problem.model.hidden_size * element_bytes(cases)
    one: FloatColumn = np.where(
        cases.table.sequence_parallel, network.all_gather(group, message), network.all_reduce(group, message) / 2
    )
    return passes * one
