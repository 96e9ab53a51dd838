"""What norms keep: their inputs, their statistics, and their outputs for the matrices that read them."""

from __future__ import annotations

import numpy as np

from cost_models.adapters import is_adapted, keeps_input
from cost_models.architecture import Block, FeedForward, Linear
from cost_models.memory.tokens import Tokens
from cost_models.plain_code import PlainNorm
from cost_models.strategy import FloatColumn

READERS = frozenset({"q", "k", "v", "qkv", "q_down", "kv_down", "gate", "up", "gate_up", "router", "shared_gate"})
"""Matrices that read the output of a norm over the hidden size."""

_STATISTIC_BYTES = 4.0
"""fp32 mean or reciprocal root mean square of a token (torch's native_layer_norm and _fused_rms_norm)."""


def kept_by_norm(at: Tokens, read: FloatColumn, weights: bool = True) -> FloatColumn:
    """Bytes an element that a norm keeps of what it reads, itself `read` bytes an element."""
    # Only the gradient of weights needs normalised values.
    trained = 1.0 if weights and at.problem.workload.fine_tuning is None else 0.0
    plain: dict[PlainNorm, FloatColumn] = {
        "kernel": read,
        "fp32_kernel": np.full_like(read, 4.0),
        "rounded": 4.0 + trained * read,
        "mixed": 4.0 + np.where(read < 4.0, read, 0.0) + trained * read,
        "fp32": np.full_like(read, 4.0 + trained * 4.0),
        "centred": np.full_like(read, 8.0 + trained * 4.0),
    }
    return np.where(at.written_out, plain[at.plain.norm], read)


def kept_by_inner_norm(at: Tokens, weights: bool = True) -> FloatColumn:
    """The same of a norm that reads what a matrix wrote; torch.autocast casts it for torch's kernel."""
    return kept_by_norm(at, np.where(at.autocast & (at.plain.norm == "kernel"), 4.0, at.element), weights)


def statistics_bytes(at: Tokens) -> FloatColumn:
    """Of one token of one norm."""
    kernel = 2.0 if at.problem.model.norm == "layernorm" else 1.0
    plain = 2.0 if at.plain.norm in ("kernel", "fp32_kernel") else 1.0
    return _STATISTIC_BYTES * np.where(at.written_out, plain, kernel)


def norms_of_block(block: Block, at: Tokens) -> dict[str, FloatColumn]:
    """Over the full hidden size."""
    hidden = at.problem.model.hidden_size
    norms = max(block.norms, 1)
    # Norms before attention and perceptron feed matrices; norms after them feed the residual stream only.
    feeding = min(norms, 2 if block.parallel_residual else 1 + len(block.attentions))
    # Two norms side by side read one tensor; those that are written out copy it.
    by_hand = at.written_out & (at.plain.norm != "kernel")
    before = np.where(by_hand, feeding, 1.0 if block.parallel_residual else feeding)
    inputs = before * kept_by_norm(at, at.stream) + (norms - feeding) * kept_by_inner_norm(at)
    kept = inputs * hidden + norms * statistics_bytes(at)
    each = float(sum(keeps_input(w.name, at.problem.workload.fine_tuning) for w in _readers(block)))
    copies = np.where(at.autocast | at.casts_adapted, each, feeding * _adapted_share(block, at))
    return {
        "norm_inputs": kept * at.count * at.residual,
        "norm_outputs": copies * at.linear_input * hidden * at.count * at.gathered,
    }


def _readers(block: Block) -> list[Linear]:
    routed = block.experts.routed.linears if block.experts else ()
    return [w for w in block.linears if w.name in READERS and w not in routed]


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
