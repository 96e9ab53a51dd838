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

from cost_models.memory.buffers import Buffers
from cost_models.memory.facts import dtype_bytes, flag, number
from cost_models.memory.in_flight import micro_batches
from cost_models.memory.loss import LossHead
from cost_models.memory.stage_activations import StageActivations
from cost_models.memory.states import StateBytes
from cost_models.memory.weights import LocalWeights
from cost_models.problem import Problem
from cost_models.stages import StageRows
from cost_models.strategy import BoolColumn, FloatColumn, IntColumn, StrategyTable

_PARTS = ("parameters", "gradients", "optimizer_states", "activations", "logits", "communication_buffers")


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
    fresh = _fresh_gradients(problem, table)[row]
    before_backward = np.where(fresh, 0.0, states.gradients)
    copies = _weight_copies(problem, table)[row] * weights.matrices
    pending = activations.pending_losses * loss.pending[row]
    logits = np.where(stages.last, loss.peak[row], 0.0) + pending
    # Start of backward with all activations, or its end with all gradients.
    at_end = states.gradients + activations.one_layer > before_backward + activations.saved + pending
    zero = np.zeros(len(row))
    foreach = _step_temporaries(table)[row] * (weights.trainable_dense + weights.trainable_expert)
    moments = (
        (
            states.parameters + copies,
            before_backward,
            states.optimizer_states,
            activations.saved,
            pending,
            buffer.forward,
        ),
        (
            states.parameters + copies,
            before_backward,
            states.optimizer_states,
            activations.saved,
            logits,
            buffer.forward,
        ),
        (
            states.parameters + copies,
            np.where(at_end, states.gradients, before_backward),
            states.optimizer_states,
            np.where(at_end, activations.one_layer, activations.saved) + activations.working,
            np.where(at_end, 0.0, pending),
            buffer.backward,
        ),
        (
            states.parameters,
            states.gradients + states.step_gradients,
            states.optimizer_states + foreach,
            zero,
            zero,
            buffer.optimizer,
        ),
    )
    totals = np.stack([sum(parts, zero) for parts in moments])
    moment = np.argmax(totals, axis=0)
    chosen = {name: np.choose(moment, [parts[index] for parts in moments]) for index, name in enumerate(_PARTS)}
    step = np.where(moment == len(moments) - 1, states.step_gradients + foreach, 0.0)
    return Peak(chosen, moment, step)


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
