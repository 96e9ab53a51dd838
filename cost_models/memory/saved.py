"""Bytes that one block saves for its backward, operator by operator.

Source of the method: arXiv 2205.05198, section 4.1 (each tensor that backward needs, counted once). The tensors of
un-fused kernels are those that torch autograd saves for the plain modules of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.adapters import is_adapted
from cost_models.architecture import Attention, Block, FeedForward, MixtureOfExperts
from cost_models.memory.facts import flag
from cost_models.memory.tokens import Tokens
from cost_models.strategy import FloatColumn

_SOFTMAX_STATISTIC_BYTES = 4.0
"""Flash attention keeps the fp32 log-sum-exp of each query and head (arXiv 2307.08691, section 3.1)."""


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

    @property
    def total(self) -> FloatColumn:
        """All of it: no recomputation."""
        result: FloatColumn = np.sum([getattr(self, name) for name in self.__dataclass_fields__], axis=0)
        return result


def saved_by_block(block: Block, at: Tokens) -> Saved:
    """What a block keeps without recomputation."""
    zero = np.zeros_like(at.count)
    attention = _attention(block.attention, at)
    if block.cross_attention:
        attention = {name: value + _attention(block.cross_attention, at)[name] for name, value in attention.items()}
    parts: dict[str, FloatColumn] = dict.fromkeys(Saved.__dataclass_fields__, zero)
    parts |= attention
    parts |= _norms(block, at)
    if isinstance(block.feed_forward, FeedForward):
        hidden, activated = _feed_forward(block.feed_forward, at)
        parts |= {"hidden": hidden, "activated": activated}
    else:
        parts |= _experts(block.feed_forward, at)
    if at.problem.workload.dropout > 0:
        # one byte an element after each attention and after the perceptron (arXiv 2205.05198, section 4.1)
        parts["dropout_masks"] = (1.0 + len(block.attentions)) * at.problem.model.hidden_size * at.residual * at.count
    return Saved(**parts)


def _norms(block: Block, at: Tokens) -> Mapping[str, FloatColumn]:
    hidden = at.problem.model.hidden_size * at.count
    # Norms before attention and perceptron feed matrices; norms after them feed the residual stream only.
    inputs_of_matrices = 1 if block.parallel_residual else 1 + len(block.attentions)
    norms = max(block.norms, 1)
    plain = np.where(at.eager, 4.0 + (at.element if at.problem.model.norm == "rmsnorm" else 0.0), at.element)
    adapted = _adapted_share(block, at)
    return {
        "norm_inputs": norms * plain * hidden * at.residual,
        "norm_outputs": min(norms, inputs_of_matrices) * at.linear_input * hidden * at.gathered * adapted,
    }


def _adapted_share(block: Block, at: Tokens) -> float:
    """A frozen matrix needs no input for its own gradient; one with an adapter keeps it for the adapter."""
    tuning = at.problem.workload.fine_tuning
    if tuning is None:
        return 1.0
    readers = [any(is_adapted(w.name, tuning) for w in block.attention.linears)]
    part = block.feed_forward
    first = part if isinstance(part, FeedForward) else part.routed
    readers.append(any(is_adapted(w.name, tuning) for w in first.linears))
    return sum(readers) / len(readers)


def _keeps_input(name: str, at: Tokens) -> float:
    tuning = at.problem.workload.fine_tuning
    return 1.0 if tuning is None or is_adapted(name, tuning) else 0.0


def _attention(attention: Attention, at: Tokens) -> dict[str, FloatColumn]:
    queries = attention.heads * attention.head_dim
    keys = attention.key_value_heads * attention.head_dim
    values = attention.key_value_heads * attention.value_head_dim
    output = attention.heads * attention.value_head_dim
    flash = at.problem.workload.attention == "flash"
    inner = at.count * at.tensor
    inputs = np.full_like(inner, queries + keys + values)
    if flash:
        core = np.full_like(inner, attention.heads * _SOFTMAX_STATISTIC_BYTES)
    else:
        # Plain attention expands keys and values to all heads.
        inputs = queries + np.where(at.fused, keys + values, queries + output)
        core = attention.heads * at.keys * _score_bytes(attention, at)
    # The projection reads what the kernel wrote: one tensor in 16 bit; beside it an 8-bit copy under fp8.
    copies = at.element + np.where(at.linear_input < at.element, at.linear_input, 0.0)
    if not flash:
        copies = at.linear_input * _keeps_input("o", at)
    # Ulysses exchanges the kernel's output, so that the projection reads another tensor (arXiv 2309.14509).
    exchanged = (at.table.context_parallel_size > 1) & at.table.is_choice("context_parallel_kind", "all-to-all")
    copies = copies + np.where(exchanged | flag(at.table, "attention_output_copied"), at.element, 0.0)
    parts = {
        "queries_keys_values": at.element * inputs * inner,
        "attention_core": core * inner,
        "attention_output": copies * output * inner,
        "latents": np.zeros_like(inner),
    }
    latent = attention.latent
    if latent is not None:
        ranks = 2 * latent.kv_rank + latent.rope_head_dim + 2 * (latent.q_rank or 0)
        parts["latents"] = at.element * ranks * at.count * at.residual
    elif attention.norms:
        # q and k norms keep their inputs
        parts["queries_keys_values"] = parts["queries_keys_values"] + at.element * (queries + keys) * inner
    return parts


def _score_bytes(attention: Attention, at: Tokens) -> FloatColumn:
    """Bytes of a query-key pair: probabilities, with dropout a mask and the dropped ones (arXiv 2205.05198, eq. 1)."""
    probabilities = at.element + np.where(at.fused, 0.0, 4.0)  # plain attention takes the softmax in fp32
    if at.problem.workload.dropout > 0:
        probabilities = probabilities + 1.0 + at.element
    return probabilities + (at.element if attention.soft_cap else 0.0)


def _feed_forward(part: FeedForward, at: Tokens) -> tuple[FloatColumn, FloatColumn]:
    inner = part.hidden * at.count * at.tensor
    # gate and up; un-fused also the activated gate, which the product keeps
    widths = 2.0 + np.where(at.fused_gate, 0.0, 1.0) if part.gated else 1.0
    return widths * at.element * inner, at.linear_input * inner * _keeps_input("down", at)


def _experts(part: MixtureOfExperts, at: Tokens) -> dict[str, FloatColumn]:
    table, model = at.table, at.problem.model
    routed = part.routed
    local = at.count * at.residual
    split = table.expert_tensor_parallel_size
    dispatched = local * part.experts_per_token * at.problem.workload.expert_imbalance * split
    inner = dispatched * routed.hidden / split
    gates = (2.0 if routed.gated else 1.0) + np.where(at.fused_gate | (not routed.gated), 0.0, 1.0)
    zero = np.zeros_like(local)
    hidden, activated = _feed_forward(part.shared, at) if part.shared else (zero, zero)
    # Un-fused experts scale their outputs by the router's weight, which keeps them.
    scaled = np.where(at.fused, 0.0, at.element) * model.hidden_size * dispatched
    return {
        # fp32 logits and probabilities, and the map of tokens to experts
        "router": 3.0 * 4.0 * part.experts * local,
        "expert_input": at.linear_input * model.hidden_size * dispatched * _keeps_input("up", at) + scaled,
        "expert_hidden": gates * at.element * inner,
        "expert_activated": at.linear_input * inner * _keeps_input("down", at),
        "hidden": hidden,
        "activated": activated,
    }
