"""The loss head: copies of the logits that are alive at once, for one micro-batch on the last stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import flag, number
from cost_models.memory.saved_norms import kept_by_norm, statistics_bytes
from cost_models.memory.tokens import Tokens
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.vocabulary import padded_vocabulary, scored_rows, vocabulary_ranks

_TORCH_FORWARD_COPIES = 2.0
"""The fp32 logits and log-probabilities, beside the logits (torch's log_softmax)."""
_TORCH_FP32_COPIES = 3.0
"""Log-probabilities, their gradient and that of the logits (torch's log_softmax and nll_loss)."""


@dataclass(frozen=True)
class LossHead:
    """n strategies, bytes."""

    peak: FloatColumn
    """While the loss of one micro-batch is worked out and differentiated."""
    forward: FloatColumn
    """While it is worked out."""
    backward: FloatColumn
    """In the backward of the head, without the gradient of its matrix."""
    kept: FloatColumn
    """Logits that the caller's variable holds until the next step's take their place."""
    pending: FloatColumn
    """What a further micro-batch keeps whose loss awaits backward (gpipe)."""
    final_norm: FloatColumn
    """Input and output of the final norm, one micro-batch."""


def loss_head(problem: Problem, table: StrategyTable, at: Tokens) -> LossHead:
    """Logits in the compute dtype, fp32 copies, and their gradients."""
    hidden = problem.model.hidden_size
    scored = scored_rows(problem.model, table, at.count)
    logits = scored * padded_vocabulary(problem.model, table) / vocabulary_ranks(problem.model, table)
    # The plain transformers loss is torch's, and its output holds the logits.
    copies = np.where(at.eager, _TORCH_FP32_COPIES, number(table, "loss_fp32_copies"))
    held = at.element * np.where(at.eager, 0.0, number(table, "loss_logit_copies"))
    # torch.distributed.pipelining names them from forward to backward (stage.py fwd_cache, and the schedule's output).
    named = at.eager | (flag(table, "keeps_receive_buffers") & (table.pipeline_parallel_size > 1))
    kept = np.where(named, logits * at.element, 0.0)
    # A compiled loss reads the logits and writes their gradient, both in the compute dtype, and nothing between.
    compiled = table.compile & flag(table, "compiles_loss") & ~at.eager
    whole = logits * np.where(compiled, 2.0 * at.element, 4.0 * copies + held) - np.where(compiled, kept, 0.0)
    # Backward of the head: the gradient of the logits, of its matrix, of its input; with sequence parallelism also the
    # input gathered again and the shard that the input's gradient is reduced to.
    inputs = hidden * at.count * at.element * (1.0 + np.where(table.sequence_parallel, 1.0 + at.residual, 0.0))
    inputs = inputs + _head_gradient(problem, table, at)
    gradient = logits * at.element + inputs
    peak = whole
    forward = np.minimum(whole, logits * (at.element + 4.0 * _TORCH_FORWARD_COPIES))
    pending = logits * (at.element + 4.0)
    if problem.workload.fused_loss:
        # Liger-Kernel's fused linear cross-entropy (arXiv 2410.10989, section 3.2): chunks of about tokens x hidden
        # logits, and the gradient of the hidden states made in forward.
        chunk = np.minimum(logits, at.count * hidden)
        in_place = flag(table, "fused_loss_in_place")
        peak = np.where(in_place, gradient, chunk * (at.element + 4.0) + at.count * hidden * at.element)
        gradient = np.where(in_place, gradient, inputs)
        kept = np.zeros_like(kept)
        forward = peak
        pending = np.where(in_place, logits, at.count * hidden) * at.element
    reads = kept_by_norm(at, at.stream) * hidden + statistics_bytes(at)
    # A frozen head keeps nothing.
    read_by_head = 0.0 if _frozen_head(problem) else 1.0
    norms = (reads * at.residual + read_by_head * at.element * hidden * at.gathered) * at.count
    return LossHead(peak, forward, gradient, kept, pending, norms)


def _head_gradient(problem: Problem, table: StrategyTable, at: Tokens) -> FloatColumn:
    """The 16-bit gradient of the head's matrix before it is added to the fp32 one."""
    rows = padded_vocabulary(problem.model, table) / vocabulary_ranks(problem.model, table)
    matrix = rows * problem.model.hidden_size
    made = 0.0 if _frozen_head(problem) else matrix * at.element
    return np.where(flag(table, "weight_gradient_placeholders"), made, 0.0)


def _frozen_head(problem: Problem) -> bool:
    tuning = problem.workload.fine_tuning
    return tuning is not None and "head" not in tuning.modules_to_save
