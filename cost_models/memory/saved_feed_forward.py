"""What perceptrons and mixtures of experts keep."""

from __future__ import annotations

import numpy as np

from cost_models.adapters import keeps_input
from cost_models.architecture import FeedForward, MixtureOfExperts
from cost_models.memory.tokens import Tokens
from cost_models.strategy import FloatColumn

_INDEX_BYTES = 8.0
"""torch's indices are int64."""


def kept_by_feed_forward(part: FeedForward, at: Tokens) -> tuple[FloatColumn, FloatColumn]:
    """Outputs of the first matrices with what activations keep of them; the input of the last."""
    inner = part.hidden * at.count * at.tensor
    last = at.linear_input * keeps_input("down", at.problem.workload.fine_tuning)
    between = at.problem.workload.dropout > 0 and at.plain.inner_dropout
    masks = np.where(at.eager & between, 1.0, 0.0)
    return (_before_last(part, at) + masks) * inner, last * inner


def _before_last(part: FeedForward, at: Tokens) -> FloatColumn:
    """Bytes of a unit between the matrices, without the input of the last."""
    # Autocast takes the cube of `gelu_new` in fp32, and all that follows.
    step = np.where(at.autocast, 4.0, at.element)
    # relu keeps its result, not what it read.
    read = np.zeros_like(at.element) if part.activation == "relu" else at.element
    if part.activation == "gelu_new":
        # half of the input, the tanh, and one more than that (transformers/activations.py)
        read = read + np.where(at.written_out, 3.0 * step, 0.0)
    elif part.activation == "quick_gelu":
        read = read + np.where(at.written_out, at.element, 0.0)  # the sigmoid
    if part.gated:
        # un-fused also the activated gate, which the product keeps, and the other branch
        result = np.where(at.written_out & (part.activation == "gelu_new"), step, at.element)
        return read + np.where(at.fused_gate, 0.0, result) + at.element
    if part.activation == "relu":
        # The last matrix reads the same tensor, unless something lies between.
        between = at.plain.inner_dropout & (at.problem.workload.dropout > 0)
        return read + np.where(at.eager & (between | (at.plain.widens_last_input & at.autocast)), at.element, 0.0)
    return read


def dispatched_tokens(part: MixtureOfExperts, at: Tokens) -> FloatColumn:
    """Rows that the experts of one rank work on."""
    seen = part.experts_per_token * at.problem.workload.expert_imbalance
    each = np.where(at.eager & at.plain.computes_all_experts, part.experts, seen)
    return at.count * at.residual * each * at.table.expert_tensor_parallel_size


def kept_by_experts(part: MixtureOfExperts, at: Tokens) -> dict[str, FloatColumn]:
    """By the fields of `Saved`."""
    hidden_size = at.problem.model.hidden_size
    tuning = at.problem.workload.fine_tuning
    routed = part.routed
    local = at.count * at.residual
    dispatched = dispatched_tokens(part, at)
    inner = dispatched * routed.hidden / at.table.expert_tensor_parallel_size
    zero = np.zeros_like(local)
    hidden, activated = kept_by_feed_forward(part.shared, at) if part.shared else (zero, zero)
    # Un-fused experts scale their outputs by the router's weight, which keeps them; torchtitan does it in fp32
    # (torchtitan/models/moe, either side of the experts).
    scaled = np.where(at.fused, 0.0, np.where(at.eager, at.element, 4.0)) * hidden_size * dispatched
    gate = np.where(at.eager & at.plain.clamped_gate, 3.0, 0.0) * at.element
    expert_hidden = _before_last(routed, at) + gate
    if part.shared_gate:
        # the gate scales the shared experts' output
        hidden = hidden + np.where(at.fused, 0.0, at.element) * hidden_size * local
    return {
        "router": _router(part, at) * local,
        "expert_input": at.linear_input * hidden_size * dispatched * keeps_input("up", tuning) + scaled,
        "expert_hidden": expert_hidden * inner,
        "expert_activated": at.linear_input * keeps_input("down", tuning) * inner,
        "hidden": hidden,
        "activated": activated,
    }


def _router(part: MixtureOfExperts, at: Tokens) -> FloatColumn:
    """Bytes of a token."""
    # fp32 logits and probabilities, and the map of tokens to experts
    fused = 3.0 * 4.0 * part.experts
    probabilities = 4.0 * part.experts
    # Experts of a token, their order and the tokens in it, with fp32 weights before and after they are normalised.
    partly = probabilities + part.experts_per_token * (3.0 * _INDEX_BYTES + 2.0 * 4.0)
    # The same, the way back, and rounded weights.
    plain = probabilities + part.experts_per_token * (4.0 * _INDEX_BYTES + at.element)
    copied = 4.0 * at.problem.model.hidden_size if at.plain.fp32_router else 0.0
    plain = plain + np.where(at.stream < 4.0, copied, 0.0)
    return np.where(at.fused, fused, np.where(at.eager, plain, partly))
