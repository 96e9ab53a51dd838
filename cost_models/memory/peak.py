"""Peak memory of each stage: the sums of what is alive at four moments, and the largest of them.

forward: activations at their deepest, gathered weights. loss: the same and the copies of the logits (last stage).
backward: activations, the working set of one layer, gradients on their way. optimizer: states and temporaries.
Where gradients come with backward and go after the step, the start of backward has all activations and no gradients,
its end the reverse; the larger is the moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.memory.lasting import Lasting
from cost_models.memory.stage_activations import StageActivations
from cost_models.results import PEAK_MOMENTS
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn

LOSS, BACKWARD, OPTIMIZER = (PEAK_MOMENTS.index(name) for name in ("loss", "backward", "optimizer"))


@dataclass(frozen=True)
class Peak:
    """m stage rows: the parts that the allocator serves, at the moment of the peak."""

    parts: Mapping[str, FloatColumn]
    total: FloatColumn
    """Bytes of all parts."""
    moment: IntColumn
    step_temporaries: FloatColumn
    """Among them, what lives only while the optimizer steps."""

    @property
    def transient(self) -> FloatColumn:
        """Bytes that come and go within a step."""
        return self.parts["activations"] + self.parts["logits"] + self.parts["communication_buffers"]


def stage_peak(lasting: Lasting, passing: StageActivations, fresh: BoolColumn) -> Peak:
    """The worst of the four moments of every stage row.

    `fresh`: gradients do not exist before the backward at the peak.
    """
    before = np.where(fresh, 0.0, lasting.gradients)
    early = before + passing.saved + passing.pending
    # Backward begins with all activations and ends with all gradients.
    late = lasting.gradients + passing.one_layer
    at_end = late > early
    through = lasting.weight_copies + passing.received
    forward = early + through + lasting.buffers_forward
    totals = (
        forward,
        forward + passing.losses,
        np.maximum(early, late) + through + passing.working + lasting.buffers_backward,
        lasting.gradients + lasting.step_gradients + lasting.step_states + lasting.buffers_optimizer,
    )
    best, moment = _largest(totals)
    at_loss, in_backward, stepping = moment == LOSS, moment == BACKWARD, moment == OPTIMIZER
    ending = (in_backward & at_end) | stepping
    kept = np.where(stepping, 0.0, np.where(ending, passing.one_layer, passing.saved))
    through_buffers = np.where(in_backward, lasting.buffers_backward, lasting.buffers_forward) + passing.received
    parts = {
        "parameters": lasting.parameters + np.where(stepping, 0.0, lasting.weight_copies),
        "gradients": np.where(ending, lasting.gradients, before) + np.where(stepping, lasting.step_gradients, 0.0),
        "optimizer_states": lasting.optimizer_states + np.where(stepping, lasting.step_states, 0.0),
        "activations": kept + np.where(in_backward, passing.working, 0.0),
        "logits": np.where(ending, 0.0, passing.pending) + np.where(at_loss, passing.losses, 0.0),
        "communication_buffers": np.where(stepping, lasting.buffers_optimizer, through_buffers),
    }
    total = best + lasting.parameters + lasting.optimizer_states
    step = np.where(stepping, lasting.step_gradients + lasting.step_states, 0.0)
    return Peak(parts, total, moment, step)


def _largest(totals: Sequence[FloatColumn]) -> tuple[FloatColumn, IntColumn]:
    """The largest in each row, and its index: the first where several are."""
    best = totals[0]
    moment = np.zeros(len(best), dtype=np.int64)
    for index, total in enumerate(totals[1:], start=1):
        moment[total > best] = index
        best = np.maximum(best, total)
    return best, moment
