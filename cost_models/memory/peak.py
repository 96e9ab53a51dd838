"""Peak memory of each stage: the sums of what is alive at each moment of a step, and the largest of them.

forward: activations at their deepest, gathered weights. loss: the same and the copies of the logits (last stage), then
the gradients of the head. backward: at the start of a block's, all activations, its working set and gradients on their
way; at its end its gradients, without its activations; at last all gradients that are kept, and one block's
activations, then the embedding's gradients. optimizer: states and temporaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from cost_models.memory.sums import ActivationSums, MomentSums
from cost_models.strategy import FloatColumn


@dataclass(frozen=True)
class Peak:
    """m stage rows, bytes that the allocator serves."""

    moments: Mapping[str, FloatColumn]
    """What each moment of a step has, in order of time, without what is always there."""
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


def _moments(sums: MomentSums, passing: ActivationSums) -> dict[str, FloatColumn]:
    # A block's backward begins with its activations and ends with its gradients.
    block = np.maximum(passing.working + sums.product, sums.block - passing.one_layer)
    of_blocks = np.maximum(sums.first, sums.next - passing.before_next) + block
    return {
        "forward": passing.held + sums.forward,
        "loss_forward": passing.held + (sums.loss_forward + passing.loss_forward),
        "loss": passing.held + (sums.loss + passing.losses),
        "head": passing.held + (sums.head + passing.head),
        "backward": passing.held + np.maximum(of_blocks, sums.leaving),
        "last": passing.logits + (sums.last + passing.one_layer + block),
        "end": passing.logits + sums.end,
        "step": passing.logits + sums.step,
    }


def stage_peak(sums: MomentSums, passing: ActivationSums) -> Peak:
    """The worst moments of every stage row."""
    moments = _moments(sums, passing)
    *early, last, end, step = moments.values()
    most_early, most_late = reduce(np.maximum, early), np.maximum(last, end)
    within = np.maximum(most_early, most_late)
    kept = np.where(most_late > most_early, sums.kept_late, sums.kept)
    return Peak(moments, sums.always + within, kept, within - kept, sums.always + step)
