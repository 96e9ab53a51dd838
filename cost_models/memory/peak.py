"""Peak memory of each stage: the sums of what is alive at each moment of a step, and the largest of them.

forward: activations at their deepest, gathered weights. loss: the same and the copies of the logits (last stage), then
the gradients of the head. backward: at the start of a block's, all activations, its working set and gradients on their
way; at its end its gradients, without its activations; at last all gradients that are kept, and one block's
activations, then the embedding's gradients. optimizer: states and temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.memory.sums import ActivationSums, MomentSums
from cost_models.strategy import FloatColumn


@dataclass(frozen=True)
class Peak:
    """m stage rows, bytes that the allocator serves."""

    within: FloatColumn
    """At the worst moment before the optimizer's step."""
    kept: FloatColumn
    """Of these gradients and copies of weights, which do not come and go."""
    transient: FloatColumn
    """Activations, logits and buffers, which do."""
    step: FloatColumn
    """While the optimizer steps."""

    @property
    def allocated(self) -> FloatColumn:
        """At the worst moment of all."""
        return np.maximum(self.within, self.step)


def stage_peak(sums: MomentSums, passing: ActivationSums) -> Peak:
    """The worst moments of every stage row."""
    at_loss = np.maximum(sums.loss + passing.losses, sums.loss_forward + passing.loss_forward)
    at_head = np.maximum(at_loss, sums.head + passing.head)
    # A block's backward begins with its activations and ends with its gradients.
    block = np.maximum(passing.working + sums.product, sums.block - passing.one_layer)
    of_blocks = np.maximum(sums.first, sums.next - passing.one_layer) + block
    early = passing.held + np.maximum(np.maximum(sums.held, at_head), of_blocks)
    late = np.maximum(sums.last + passing.one_layer + block, sums.end) + passing.logits
    within = np.maximum(early, late)
    kept = np.where(late > early, sums.kept_late, sums.kept)
    return Peak(sums.always + within, kept, within - kept, sums.step + passing.logits)
