"""Bytes that one block saves for its backward, operator by operator.

Source of the method: arXiv 2205.05198, section 4.1 (each tensor that backward needs, counted once). The tensors of
un-fused kernels are those that torch autograd saves for the plain modules of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.adapters import adapted_linears
from cost_models.architecture import Block, FeedForward
from cost_models.memory.saved_attention import kept_by_attention
from cost_models.memory.saved_feed_forward import kept_by_experts, kept_by_feed_forward
from cost_models.memory.saved_norms import norms_of_block
from cost_models.memory.tokens import Tokens
from cost_models.strategy import FloatColumn


@dataclass(frozen=True)
class Saved:
    """u strategies, bytes of one layer of one micro-batch, by what recomputation can drop."""

    norm_inputs: FloatColumn
    norm_outputs: FloatColumn
    latents: FloatColumn
    """Multi-head latent attention: down-projections and their norms."""
    queries_keys_values: FloatColumn
    attention_core: FloatColumn
    """Softmax statistics, or scores and probabilities under eager attention."""
    attention_output: FloatColumn
    hidden: FloatColumn
    """Dense or shared-expert outputs of the first matrices, with what un-fused activations keep."""
    activated: FloatColumn
    """Input of the last matrix."""
    router: FloatColumn
    expert_input: FloatColumn
    expert_hidden: FloatColumn
    expert_activated: FloatColumn
    dropout_masks: FloatColumn
    adapters: FloatColumn
    """What the first matrices of adapters write and the second ones read."""

    @property
    def total(self) -> FloatColumn:
        """All of it: no recomputation."""
        result: FloatColumn = np.sum([getattr(self, name) for name in self.__dataclass_fields__], axis=0)
        return result


def saved_by_block(block: Block, at: Tokens) -> Saved:
    """What a block keeps without recomputation."""
    attention = kept_by_attention(block.attention, at)
    if block.cross_attention:
        across = kept_by_attention(block.cross_attention, at)
        attention = {name: value + across[name] for name, value in attention.items()}
    parts: dict[str, FloatColumn] = dict.fromkeys(Saved.__dataclass_fields__, np.zeros_like(at.count))
    parts |= attention
    parts |= norms_of_block(block, at)
    if isinstance(block.feed_forward, FeedForward):
        hidden, activated = kept_by_feed_forward(block.feed_forward, at)
        parts |= {"hidden": hidden, "activated": activated}
    else:
        parts |= kept_by_experts(block.feed_forward, at)
    if at.problem.workload.dropout > 0:
        parts["dropout_masks"] = _dropout_masks(block, at)
    if tuning := at.problem.workload.fine_tuning:
        beside = sum(linear.copies == 1 for linear in adapted_linears(block, tuning))
        parts["adapters"] = at.element * tuning.rank * beside * at.count
    return Saved(**parts)


def _dropout_masks(block: Block, at: Tokens) -> FloatColumn:
    """One byte an element after each attention and after the perceptron (arXiv 2205.05198, section 4.1)."""
    all_of_them = 1.0 + len(block.attentions)
    plain = {"none": 0.0, "perceptron": 1.0, "all": all_of_them}[at.plain.residual_dropout]
    masks = np.where(at.eager, plain, all_of_them)
    result: FloatColumn = masks * at.problem.model.hidden_size * at.residual * at.count
    return result
