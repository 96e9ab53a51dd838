"""What each moment of a step has of lasting bytes and buffers, and of activations, summed before the two are combined.

Sums of distinct layouts are few; the stage rows that share them are many, and a sweep takes only what it adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.memory.lasting import Lasting
from cost_models.memory.overhead import fragmentation_bytes
from cost_models.memory.stage_activations import StageActivations
from cost_models.strategy import BoolColumn, FloatColumn


@dataclass(frozen=True)
class MomentSums:
    """m stage rows, bytes; the moments without what is always there."""

    always: FloatColumn
    """Parameters, optimizer states, workspaces."""
    forward: FloatColumn
    """A block's forward."""
    leaving: FloatColumn
    """The head's gradients on their way."""
    loss: FloatColumn
    loss_forward: FloatColumn
    """Before it is differentiated."""
    head: FloatColumn
    """The head's backward."""
    first: FloatColumn
    """The first block's backward."""
    next: FloatColumn
    """The second's."""
    product: FloatColumn
    """Gradients of a block's last matrices, besides."""
    block: FloatColumn
    """Gradients of a whole block, besides."""
    last: FloatColumn
    """The last block's backward."""
    end: FloatColumn
    """After all blocks."""
    step: FloatColumn
    """The optimizer's step."""
    step_reserved: FloatColumn
    """What the allocator has reserved after it."""
    kept: FloatColumn
    """Of these what does not come and go within a step: gradients and copies of weights."""
    kept_late: FloatColumn
    """The same in the last block's backward."""
    pooled_gradients: FloatColumn
    pooled_buffers: FloatColumn
    """What the allocator has reserved for the gathering stream alone."""
    outside: FloatColumn
    """What the allocator does not serve."""
    expandable: BoolColumn


@dataclass(frozen=True)
class ActivationSums:
    """m stage rows, bytes: `StageActivations` with what lasts from forward to backward as one sum."""

    held: FloatColumn
    working: FloatColumn
    one_layer: FloatColumn
    before_next: FloatColumn
    losses: FloatColumn
    loss_forward: FloatColumn
    logits: FloatColumn
    head: FloatColumn


def activation_sums(passing: StageActivations) -> ActivationSums:
    """Sums of every stage row."""
    held = passing.saved + passing.pending + passing.received + passing.logits
    final, logits = passing.final_norm, passing.logits
    ends = (passing.losses + final, passing.loss_forward + final, logits, passing.head + final)
    return ActivationSums(held, passing.working, passing.one_layer, passing.before_next, *ends)


def moment_sums(lasting: Lasting) -> MomentSums:
    """Sums of every stage row."""
    buffers = lasting.buffers
    kept = lasting.early_gradients + lasting.weight_copies
    with_head = kept + lasting.head_copies
    after_head = kept + lasting.head_gradients
    temporaries = lasting.step_gradients + lasting.step_states
    always = lasting.parameters + lasting.optimizer_states + lasting.workspace
    step = lasting.stepped_gradients + temporaries + buffers.optimizer
    fragmentation = fragmentation_bytes(lasting.expandable, always + step, buffers.optimizer, temporaries)
    return MomentSums(
        always=always,
        forward=kept + buffers.forward + lasting.forward_copies,
        leaving=after_head + buffers.leaving,
        loss=with_head + buffers.loss,
        loss_forward=with_head + buffers.loss + lasting.forward_copies,
        head=with_head + buffers.head,
        first=after_head + buffers.backward,
        next=after_head + buffers.next,
        product=buffers.product,
        block=buffers.block,
        last=lasting.late_gradients + buffers.late,
        end=lasting.gradients + buffers.end,
        step=step,
        step_reserved=always + step + fragmentation + buffers.pooled,
        kept=kept,
        kept_late=lasting.late_gradients,
        pooled_gradients=lasting.pooled_gradients,
        pooled_buffers=buffers.pooled,
        outside=lasting.outside,
        expandable=lasting.expandable,
    )
