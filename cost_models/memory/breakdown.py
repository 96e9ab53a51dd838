"""The moment of a stage's peak, and what is alive then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.memory.lasting import Lasting
from cost_models.memory.peak import Peak
from cost_models.memory.stage_activations import StageActivations
from cost_models.results import PEAK_MOMENTS
from cost_models.strategy import FloatColumn, IntColumn

FORWARD, LOSS, BACKWARD, OPTIMIZER = (PEAK_MOMENTS.index(name) for name in PEAK_MOMENTS)


def peak_parts(lasting: Lasting, passing: StageActivations, peak: Peak) -> tuple[IntColumn, Mapping[str, FloatColumn]]:
    """(m,) index into PEAK_MOMENTS; what the allocator serves, by those of MEMORY_PARTS that it serves alone.

    What is neither weights, gradients, states, activations nor logits are buffers.
    """
    names = list(peak.moments)
    largest = np.argmax(np.stack([*peak.moments.values()]), axis=0)

    def at(*which: str) -> FloatColumn:
        return np.isin(largest, [names.index(name) for name in which]).astype(np.float64)

    early = at("forward", "loss_forward", "loss", "head", "backward")
    parts = {
        "parameters": lasting.parameters
        + early * lasting.weight_copies
        + at("loss_forward", "loss", "head") * lasting.head_copies
        + at("forward", "loss_forward") * lasting.forward_copies,
        "gradients": early * lasting.early_gradients
        + at("backward") * lasting.head_gradients
        + at("last") * lasting.late_gradients
        + at("end") * lasting.gradients
        + at("step") * lasting.stepped_gradients
        + at("step") * lasting.step_gradients,
        "optimizer_states": lasting.optimizer_states + at("step") * lasting.step_states,
        "activations": early * passing.saved
        + at("loss_forward", "loss", "head") * passing.final_norm
        + at("last") * passing.one_layer
        + at("backward", "last") * passing.working,
        "logits": passing.logits
        + early * passing.pending
        + at("loss") * passing.losses
        + at("loss_forward") * passing.loss_forward
        + at("head") * passing.head,
    }
    rest = np.maximum(peak.allocated - lasting.workspace - sum(parts.values()), 0.0)
    moment = np.array([FORWARD, LOSS, LOSS, LOSS, BACKWARD, BACKWARD, BACKWARD, OPTIMIZER])[largest]
    return moment, {**parts, "communication_buffers": rest}
