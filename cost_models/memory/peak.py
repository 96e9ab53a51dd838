"""Peak memory of each stage: the sums of what is alive at four moments, and the largest of them.

forward: activations at their deepest, gathered weights. loss: the same and the copies of the logits (last stage).
backward: activations, the working set of one layer, gradients on their way. optimizer: states and temporaries.
Where gradients come with backward and go after the step, the start of backward has all activations and no gradients,
its end the reverse; the larger is the moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.memory.lasting import Lasting
from cost_models.memory.stage_activations import StageActivations
from cost_models.results import PEAK_MOMENTS
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

FORWARD, LOSS, BACKWARD, OPTIMIZER = (PEAK_MOMENTS.index(name) for name in PEAK_MOMENTS)


@dataclass(frozen=True)
class Peak:
    """m stage rows at the moment of the peak; parameters and optimizer states are there at any moment."""

    lasting: Lasting
    passing: StageActivations
    besides: FloatColumn
    """Bytes that the allocator serves besides parameters and optimizer states."""
    in_backward: BoolColumn
    stepping: BoolColumn
    """The moment is the optimizer's step."""
    ending: BoolColumn
    """Gradients are whole: the end of backward, or the step."""

    @property
    def total(self) -> FloatColumn:
        """All bytes that the allocator serves."""
        return self.besides + self.lasting.parameters + self.lasting.optimizer_states

    @property
    def gradients(self) -> FloatColumn:
        """Without temporaries of the step."""
        return np.where(self.ending, self.lasting.gradients, self.lasting.early_gradients)

    @property
    def transient(self) -> FloatColumn:
        """Bytes that come and go within a step: activations, logits and buffers."""
        within = self.besides - self.gradients - self.lasting.weight_copies
        return np.where(self.stepping, self.lasting.buffers_optimizer, within)

    @property
    def step_temporaries(self) -> FloatColumn:
        """What lives only while the optimizer steps."""
        return np.where(self.stepping, self.lasting.step_gradients + self.lasting.step_states, 0.0)

    @property
    def at_loss(self) -> BoolColumn:
        """The moment is the loss."""
        at_loss: BoolColumn = (self.passing.losses > 0) & ~(self.in_backward | self.stepping)
        return at_loss

    @property
    def moment(self) -> IntColumn:
        """Index into PEAK_MOMENTS."""
        return np.select([self.stepping, self.in_backward, self.at_loss], [OPTIMIZER, BACKWARD, LOSS], FORWARD)

    def parts(self) -> Mapping[str, FloatColumn]:
        """What the allocator serves, by those of MEMORY_PARTS that it serves alone."""
        lasting, passing, stepping = self.lasting, self.passing, self.stepping
        kept = np.where(stepping, 0.0, np.where(self.ending, passing.one_layer, passing.saved))
        buffers = np.where(self.in_backward, lasting.buffers_backward, lasting.buffers_forward) + passing.received
        return {
            "parameters": lasting.parameters + np.where(stepping, 0.0, lasting.weight_copies),
            "gradients": self.gradients + np.where(stepping, lasting.step_gradients, 0.0),
            "optimizer_states": lasting.optimizer_states + np.where(stepping, lasting.step_states, 0.0),
            "activations": kept + np.where(self.in_backward, passing.working, 0.0),
            "logits": np.where(self.ending, 0.0, passing.pending) + np.where(self.at_loss, passing.losses, 0.0),
            "communication_buffers": np.where(stepping, lasting.buffers_optimizer, buffers),
        }


def stage_peak(lasting: Lasting, passing: StageActivations) -> Peak:
    """The worst of the four moments of every stage row; the first where several are."""
    early = lasting.early_gradients + passing.saved + passing.pending
    # Backward begins with all activations and ends with all gradients.
    late = lasting.gradients + passing.one_layer
    through = lasting.weight_copies + passing.received
    to_loss = early + through + lasting.buffers_forward + passing.losses
    backward = np.maximum(early, late) + through + passing.working + lasting.buffers_backward
    step = lasting.gradients + lasting.step_gradients + lasting.step_states + lasting.buffers_optimizer
    within = np.maximum(to_loss, backward)
    stepping = step > within
    in_backward = (backward > to_loss) & ~stepping
    return Peak(
        *(lasting, passing),
        besides=np.maximum(within, step),
        in_backward=in_backward,
        stepping=stepping,
        ending=(in_backward & (late > early)) | stepping,
    )
