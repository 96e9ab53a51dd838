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

from cost_models.memory.buffers import Buffers
from cost_models.memory.facts import dtype_bytes, flag, number
from cost_models.memory.in_flight import micro_batches
from cost_models.memory.loss import LossHead
from cost_models.memory.stage_activations import StageActivations
from cost_models.memory.states import StateBytes
from cost_models.memory.weights import LocalWeights
from cost_models.problem import Problem
from cost_models.results import PEAK_MOMENTS
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable

LOSS, BACKWARD, OPTIMIZER = (PEAK_MOMENTS.index(name) for name in ("loss", "backward", "optimizer"))


@dataclass(frozen=True)
class Peak:
    """m stage rows: the parts that the allocator serves, at the moment of the peak."""

    parts: Mapping[str, FloatColumn]
    moment: IntColumn
    step_temporaries: FloatColumn
    """Among them, what lives only while the optimizer steps."""

    @property
    def total(self) -> FloatColumn:
        """Bytes of all parts."""
        result: FloatColumn = np.sum(list(self.parts.values()), axis=0)
        return result

    @property
    def transient(self) -> FloatColumn:
        """Bytes that come and go within a step."""
        return self.parts["activations"] + self.parts["logits"] + self.parts["communication_buffers"]


def stage_peak(
    problem: Problem,
    table: StrategyTable,
    stages: StageRows,
    weights: LocalWeights,
    states: StateBytes,
    activations: StageActivations,
    loss: LossHead,
    buffer: Buffers,
) -> Peak:
    """The worst of the four moments of every stage row."""
    row = stages.row
    before = np.where(_fresh_gradients(problem, table)[row], 0.0, states.gradients)
    copies = _weight_copies(problem, table)[row] * weights.matrices
    pending = activations.pending_losses * loss.pending[row]
    losses = np.where(stages.last, loss.peak[row], 0.0)
    foreach = _step_temporaries(table)[row] * (weights.trainable_dense + weights.trainable_expert)
    early = before + activations.saved + pending
    # Backward begins with all activations and ends with all gradients.
    late = states.gradients + activations.one_layer
    at_end = late > early
    through = early + copies
    forward = through + buffer.forward
    totals = (
        forward,
        forward + losses,
        np.maximum(early, late) + copies + activations.working + buffer.backward,
        states.gradients + states.step_gradients + foreach + buffer.optimizer,
    )
    moment = _largest(totals)
    at_loss, in_backward, stepping = moment == LOSS, moment == BACKWARD, moment == OPTIMIZER
    ending = (in_backward & at_end) | stepping
    kept = np.where(stepping, 0.0, np.where(ending, activations.one_layer, activations.saved))
    parts = {
        "parameters": states.parameters + np.where(stepping, 0.0, copies),
        "gradients": np.where(ending, states.gradients, before) + np.where(stepping, states.step_gradients, 0.0),
        "optimizer_states": states.optimizer_states + np.where(stepping, foreach, 0.0),
        "activations": kept + np.where(in_backward, activations.working, 0.0),
        "logits": np.where(ending, 0.0, pending) + np.where(at_loss, losses, 0.0),
        "communication_buffers": np.where(
            stepping, buffer.optimizer, np.where(in_backward, buffer.backward, buffer.forward)
        ),
    }
    return Peak(parts, moment, np.where(stepping, states.step_gradients + foreach, 0.0))


def _largest(totals: Sequence[FloatColumn]) -> IntColumn:
    """Index of the largest in each row, the first where several are."""
    best = totals[0]
    moment = np.zeros(len(best), dtype=np.int64)
    for index, total in enumerate(totals[1:], start=1):
        moment[total > best] = index
        best = np.maximum(best, total)
    return moment


def _fresh_gradients(problem: Problem, table: StrategyTable) -> BoolColumn:
    """Gradients that do not exist before the backward at the peak: set to None after each step, one micro-batch."""
    fresh: BoolColumn = ~flag(table, "persistent_gradients") & (micro_batches(problem, table) == 1)
    return fresh


def _weight_copies(problem: Problem, table: StrategyTable) -> FloatColumn:
    """Bytes of a matrix element in copies that live through forward and backward."""
    fp8 = table.is_choice("precision", "fp8") & ~table.is_choice("parameter_dtype", "fp8")
    eight_bit = np.where(fp8, number(table, "fp8_weight_copies"), 0.0)
    cast = (
        flag(table, "autocast_weight_copies")
        & (dtype_bytes(table.parameter_dtype) == 4.0)
        & ~table.is_choice("precision", "fp32")
    )
    frozen = problem.workload.fine_tuning is not None
    return eight_bit + np.where(cast & (not frozen), 2.0, 0.0)


def _step_temporaries(table: StrategyTable) -> FloatColumn:
    """torch's foreach Adam makes the square roots of all second moments at once (torch/optim/adam.py)."""
    sharded = np.where(
        table.zero_stage >= 1,
        table.data_parallel_size * table.context_parallel_size / table.data_parallel_replicate_size,
        1.0,
    )
    here = table.is_choice("offload", "none", "activations")
    return np.where(flag(table, "foreach_optimizer") & here, dtype_bytes(table.optimizer_state_dtype), 0.0) / sharded
