"""Activations of whole stages: layers times micro-batches in flight, with recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import ModelArchitecture
from cost_models.memory.facts import flag, number
from cost_models.memory.in_flight import InFlight, in_flight
from cost_models.memory.loss import LossHead
from cost_models.memory.received import buffered_micro_batches, received_bytes
from cost_models.memory.recomputation import LayerActivations
from cost_models.memory.tokens import Tokens
from cost_models.problem import Problem
from cost_models.stages import StageRows, checkpointed_share
from cost_models.strategy import FloatColumn, StrategyTable

LAYERS_IN_TRANSIT: Final = 2.0
"""Offloaded layers whose activations are on the GPU all the same: one on its way, one in use (Transformer Engine's
cpu_offload and torchtune's OffloadActivations copy on a stream of their own, a layer ahead)."""


def offloaded_share(table: StrategyTable) -> FloatColumn:
    """(n,) share of the layers whose activations go to the host."""
    return np.where(table.is_choice("offload", "activations"), table.offload_fraction, 0.0)


def position_bias_bytes(model: ModelArchitecture, at: Tokens) -> FloatColumn:
    """(n,) relative position biases that the layers of a stack share, and their gradients, of two stacks (T5).

    transformers adds the mask of each sample to them; a fused kernel takes one for all samples.
    """
    heads = max((block.attention.heads for block in model.blocks if block.attention.other_parameters), default=0)
    samples = 1.0 if at.problem.workload.attention == "flash" else at.table.micro_batch_size
    return 2.0 * 2.0 * at.element * samples * heads * at.keys**2 * at.tensor


@dataclass(frozen=True)
class StageActivations:
    """m stage rows, bytes."""

    saved: FloatColumn
    """Saved tensors of all micro-batches in flight."""
    working: FloatColumn
    """Live only in the backward of one layer, its recomputed tensors included."""
    one_layer: FloatColumn
    """Saved by one layer of one micro-batch: the end of backward."""
    final_norm: FloatColumn
    """Saved by the norm before the head, of the micro-batch under way: gone when the backward of the blocks begins."""
    before_next: FloatColumn
    """What backward has freed when `Buffers.next` is reached: one layer's or, where that is its last block, of all
    others in the micro-batch."""
    pending: FloatColumn
    """Of micro-batches on the last stage whose loss awaits backward, besides the one under way."""
    losses: FloatColumn
    """Copies of the logits at the loss of one micro-batch, on the last stage."""
    loss_forward: FloatColumn
    """The same before the loss is differentiated."""
    logits: FloatColumn
    """Held from one loss to the next."""
    head: FloatColumn
    """In the backward of the head, on the last stage."""
    received: FloatColumn
    """Buffers of what comes from the neighbouring stages, and those that stay for gathered activations."""


def stage_activations(
    problem: Problem, table: StrategyTable, stages: StageRows, layers: LayerActivations, loss: LossHead, at: Tokens
) -> tuple[StageActivations, FloatColumn]:
    """Sum the layers of each stage at the depth its schedule reaches; and what of it lies on the host, (m,)."""
    row = stages.row
    held = in_flight(problem, table, stages)
    kinds = range(len(problem.model.blocks))
    count = stages.layers[:, 0].astype(np.float64)
    for kind in kinds[1:]:
        count += stages.layers[:, kind]
    share = checkpointed_share(table, row, count)
    recomputes = share > 0
    which = layers.which[row]
    saved, dropped, working, one_layer = (np.zeros(len(row)) for _ in range(4))
    for kind in kinds:
        drop = (layers.saved[:, kind] - layers.kept[:, kind])[which]
        kept = layers.kept[:, kind][which]
        saved += held.layers[kind] * (kept + (1.0 - share) * drop)
        # A stage without layers of this kind has none of their temporaries.
        present = (stages.layers[:, kind] > 0).astype(np.float64)
        np.maximum(dropped, drop * (present * recomputes), out=dropped)
        np.maximum(working, layers.working[:, kind][which] * present, out=working)
        np.maximum(one_layer, kept * present, out=one_layer)
    on_host = np.zeros(len(row))
    moved = offloaded_share(table)
    if moved.any():
        wanted = moved[row] * saved
        on_host = np.maximum(wanted - LAYERS_IN_TRANSIT * one_layer, 0.0)
        saved -= on_host
    boundary = at.element * problem.model.hidden_size * at.count * at.residual
    sent = np.where(flag(table, "keeps_pipeline_outputs"), boundary, 0.0)
    final = stages.on_last(loss.final_norm)
    saved += np.where(stages.last, (held.leaving - 1.0) * final, held.leaving * sent[row])
    if problem.workload.dropout > 0:
        mask = (problem.model.hidden_size * at.count * at.residual)[row]
        saved += np.where(stages.first, held.entering * mask, 0.0)
    if problem.model.is_encoder_decoder:
        # The encoder's final norm, whose output all decoder layers read, and the position biases of both stacks.
        saved += held.leaving * (loss.final_norm + position_bias_bytes(problem.model, at))[row]
    if problem.model.is_classifier:
        # The patch projection keeps the image for the gradient of its weights.
        patches = (at.keys - 1.0) * problem.model.patch_elements
        image = (at.element * at.table.micro_batch_size * patches)[row]
        saved += np.where(stages.first, held.entering * image, 0.0)
    pending = (held.leaving - 1.0) * stages.on_last(loss.pending)
    losses = stages.on_last(loss.peak)
    loss_forward = stages.on_last(loss.forward)
    logits = stages.on_last(loss.kept)
    head = stages.on_last(loss.backward)
    received = received_bytes(problem, table, stages, held, boundary)
    whole = at.element * problem.model.hidden_size * at.count
    received += np.where(table.sequence_parallel, number(table, "gather_buffers") * whole, 0.0)[row]
    found = StageActivations(
        saved=saved,
        working=working + dropped,
        one_layer=one_layer,
        final_norm=final,
        before_next=_before_next(problem, table, stages, held, saved, one_layer),
        pending=pending,
        losses=losses,
        loss_forward=loss_forward,
        logits=logits,
        head=head,
        received=received,
    )
    return found, on_host


def _before_next(
    problem: Problem,
    table: StrategyTable,
    stages: StageRows,
    held: InFlight,
    saved: FloatColumn,
    one_layer: FloatColumn,
) -> FloatColumn:
    gathered = buffered_micro_batches(problem, table)[stages.row] > 0
    freed: FloatColumn = np.where(gathered, np.maximum(saved / held.leaving - one_layer, 0.0), one_layer)
    return freed
