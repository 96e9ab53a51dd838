"""The loss head: copies of the logits that are alive at once, for one micro-batch on the last stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.facts import flag
from cost_models.memory.tokens import Tokens
from cost_models.problem import Problem
from cost_models.strategy import FloatColumn, StrategyTable
from cost_models.vocabulary import padded_vocabulary


@dataclass(frozen=True)
class LossHead:
    """n strategies, bytes."""

    peak: FloatColumn
    """While the loss of one micro-batch is worked out and differentiated."""
    pending: FloatColumn
    """What a further micro-batch keeps whose loss awaits backward (gpipe)."""
    final_norm: FloatColumn
    """Input and output of the final norm, one micro-batch."""


def loss_head(problem: Problem, table: StrategyTable, at: Tokens) -> LossHead:
    """Logits in the compute dtype, fp32 copies, and their gradients."""
    hidden = problem.model.hidden_size
    logits = at.count * padded_vocabulary(problem.model, table) * at.tensor
    parallel = flag(table, "vocabulary_parallel_loss") & ~at.eager
    # Megatron's vocabulary-parallel cross-entropy works in place on one fp32 copy (arXiv 1909.08053, section 3);
    # torch's keeps log-probabilities, makes a gradient of them and one of the logits, each in fp32; the plain
    # transformers loss still holds the 16-bit logits then.
    plain = 4.0 + 4.0 + 4.0 + np.where(at.eager, at.element, 0.0)
    whole = logits * np.where(parallel, at.element + 4.0, plain)
    gradient = logits * at.element + _head_gradient(problem, table, at)
    peak = np.maximum(whole, gradient)
    pending = logits * (at.element + 4.0)
    if problem.workload.fused_loss:
        # Liger-Kernel's fused linear cross-entropy (arXiv 2410.10989, section 3.2): chunks of about tokens x hidden
        # logits, and the gradient of the hidden states made in forward.
        chunk = np.minimum(logits, at.count * hidden)
        peak = np.maximum(chunk * (at.element + 4.0) + at.count * hidden * at.element, gradient - logits * at.element)
        pending = at.count * hidden * at.element
    norms = at.element * hidden * at.count * (at.residual + at.gathered)
    return LossHead(peak, pending, norms)


def _head_gradient(problem: Problem, table: StrategyTable, at: Tokens) -> FloatColumn:
    """The 16-bit gradient of the head's matrix before it is added to the fp32 one."""
    matrix = padded_vocabulary(problem.model, table) * problem.model.hidden_size * at.tensor
    frozen = problem.workload.fine_tuning is not None and "head" not in problem.workload.fine_tuning.modules_to_save
    return np.where(flag(table, "weight_gradient_placeholders"), 0.0 if frozen else matrix * at.element, 0.0)
