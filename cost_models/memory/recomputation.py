"""What a checkpointed layer keeps, and what its backward needs on top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.architecture import Block, FeedForward, Linear
from cost_models.distinct import distinct_rows
from cost_models.memory.saved import Saved, saved_by_block
from cost_models.memory.saved_attention import more_before_recomputed_core
from cost_models.memory.saved_feed_forward import dispatched_tokens
from cost_models.memory.tokens import Tokens, tokens
from cost_models.problem import Problem
from cost_models.quantisation import DEQUANTISED_BYTES, fp4_share, is_quantised, largest_matrix
from cost_models.strategy import RECOMPUTE_MODULES, BoolColumn, FloatColumn, IntColumn, StrategyTable

LAYER_COLUMNS: Final = (
    "framework",
    "micro_batch_size",
    "tensor_parallel_size",
    "sequence_parallel",
    "context_parallel_size",
    "context_parallel_kind",
    "expert_parallel_size",
    "expert_tensor_parallel_size",
    "activation_checkpointing",
    "recompute_modules",
    "kernels",
    "precision",
    "parameter_dtype",
    "compile",
)
"""Columns that decide the activations of a layer."""

_TO_THE_RESIDUAL_STREAM: Final = ("o", "down")
"""Matrices whose outputs a block adds to what passes it by."""


@dataclass(frozen=True)
class LayerActivations:
    """u distinct strategies, k distinct blocks: bytes of one layer of one micro-batch."""

    which: IntColumn
    """(n,) which of the u a strategy is."""
    saved: FloatColumn
    """(u, k) without recomputation."""
    kept: FloatColumn
    """(u, k) by a checkpointed layer."""
    working: FloatColumn
    """(u, k) live in the backward of one layer besides what was saved: gradients of activations."""


def layer_activations(problem: Problem, table: StrategyTable) -> LayerActivations:
    """Activations of each distinct block under each distinct set of the columns they depend on."""
    first, which = distinct_rows([getattr(table, name) for name in LAYER_COLUMNS])
    at = tokens(problem, table.take(first))
    saved, kept, working = [], [], []
    for block in problem.model.blocks:
        parts = saved_by_block(block, at)
        saved.append(parts.total)
        kept.append(_kept(block, parts, at))
        working.append(_working(block, parts, at))
    return LayerActivations(which, np.stack(saved, axis=1), np.stack(kept, axis=1), np.stack(working, axis=1))


def _kept(block: Block, saved: Saved, at: Tokens) -> FloatColumn:
    table = at.table
    boundary = at.stream * at.problem.model.hidden_size * at.count * at.residual
    modules = table.is_choice("activation_checkpointing", "selective") & (table.recompute_modules > 0)
    per_operator = table.is_choice("activation_checkpointing", "selective") & (table.recompute_modules == 0)
    kept: FloatColumn = np.select(
        [table.is_choice("activation_checkpointing", "full"), modules, per_operator],
        [np.minimum(boundary, saved.total), _without_modules(block, saved, at), _per_operator(block, saved, at)],
        saved.total,
    )
    return kept


def _without_modules(block: Block, saved: Saved, at: Tokens) -> FloatColumn:
    """Megatron-Core's --recompute-modules: each drops what lies between its input and its output."""

    def drop(module: str) -> BoolColumn:
        return (at.table.recompute_modules >> RECOMPUTE_MODULES.index(module) & 1).astype(np.bool_)

    dense = saved.hidden + saved.activated
    expert = saved.router + saved.expert_input + saved.expert_hidden + saved.expert_activated
    moe = drop("moe") & (saved.router > 0)
    mlp = drop("mlp") & (saved.router == 0)
    core = saved.attention_core - more_before_recomputed_core(block.attention, at)
    return (
        saved.total
        - np.where(drop("core_attn"), core, 0.0)
        - np.where(drop("mla_up_proj") & (saved.latents > 0), saved.queries_keys_values, 0.0)
        - np.where(drop("layernorm"), saved.norm_outputs, 0.0)
        - np.where(mlp, dense, 0.0)
        - np.where(moe, dense + expert, np.where(drop("moe_act"), saved.expert_activated, 0.0))
    )


def _per_operator(block: Block, saved: Saved, at: Tokens) -> FloatColumn:
    """torchtitan's selective recomputation: every second matrix product, the attention kernel's output and the inputs
    of the block are kept (torchtitan/distributed/activation_checkpoint.py, mm_recompute_shapes and the save list)."""
    outputs = at.element * at.problem.model.hidden_size * at.count * at.residual + saved.attention_core
    heads = block.attention.heads * block.attention.value_head_dim
    outputs = outputs + len(block.attentions) * at.element * heads * at.count * at.tensor
    # NVFP4 products are operators of torchao's own, which the policy does not know: recomputed.
    known = 1.0 - fp4_share(at.table)
    # torch.compile keeps no output that backward does not read: one that is only added to the residual stream. What
    # attention adds is read once more, by the second norm of a block that is not parallel.
    normed = block.norms > (1 if block.parallel_residual else 1 + len(block.attentions))
    last = _TO_THE_RESIDUAL_STREAM if block.parallel_residual else ("down",)
    # The router's product is always recomputed (per_op_sac_force_recompute_mm_shapes_by_fqns).
    for position, linear in enumerate(w for w in block.linears if w.copies == 1 and w.name != "router"):
        if position % 2 == 0:
            only_added = linear.name in last and not normed
            read = np.where(at.table.compile, 0.0, 1.0) if only_added else 1.0
            outputs = outputs + known * read * _output(linear, at)
    # A scattered sum is an operator of the list, too; a compiled block reads it in forward only.
    reduced = sum(w.name in _TO_THE_RESIDUAL_STREAM and w.copies == 1 for w in block.linears)
    scattered = (at.tensor < 1.0) & at.table.sequence_parallel & ~(at.table.compile & (not normed))
    whole = at.problem.model.hidden_size * at.element * at.count
    outputs = outputs + np.where(scattered, reduced * whole * at.residual, 0.0)
    if block.experts:
        # What tokens bring to the experts' ranks and back.
        exchanged = 2.0 * at.element * at.problem.model.hidden_size * dispatched_tokens(block.experts, at)
        outputs = outputs + np.where(at.table.expert_parallel_size > 1, exchanged, 0.0)
    return np.minimum(outputs, saved.total)


def _output(linear: Linear, at: Tokens) -> FloatColumn:
    # Partial sums of a row-parallel matrix are whole until they are reduced.
    share = {"column": at.tensor, "row": np.ones_like(at.tensor), "none": at.residual}[linear.split]
    return at.element * linear.out_features * at.count * share


def _working(block: Block, saved: Saved, at: Tokens) -> FloatColumn:
    """Gradients of activations that backward holds on top of what is saved: of the perceptron's inner tensors, or of
    attention's once the perceptron's saved tensors are gone."""
    hidden = at.problem.model.hidden_size * at.count
    attention = block.attention
    inner = attention.heads * (attention.head_dim + attention.value_head_dim)
    inner += attention.key_value_heads * (attention.head_dim + attention.value_head_dim)
    of_attention = at.element * inner * at.count * at.tensor
    if at.problem.workload.attention == "eager":
        pairs = attention.heads * at.keys * at.count * at.tensor
        of_attention = of_attention + pairs * np.where(at.fused, 2.0 * at.element, 8.0)
    else:
        # flash attention sums the gradient of the queries in fp32 (arXiv 2307.08691, algorithm 2)
        of_attention = of_attention + 4.0 * attention.heads * attention.head_dim * at.count * at.tensor
    keys_values = attention.key_value_heads * (attention.head_dim + attention.value_head_dim) * at.element
    of_attention = of_attention + keys_values * at.count * at.tensor * _exchanged_copies(at)
    gathered = np.where(at.table.sequence_parallel, at.element * hidden, 0.0)
    residual = at.element * hidden * at.residual
    gone = saved.hidden + saved.activated + saved.expert_input + saved.expert_hidden + saved.expert_activated
    if block.cross_attention:
        # The gradient of the encoder's output adds up through all of the decoder.
        residual = 2 * residual
    weight = DEQUANTISED_BYTES * largest_matrix(block) if is_quantised(at.problem) else 0.0
    return residual + gathered + weight + np.maximum(of_attention - gone, _working_feed_forward(block, at))


def _exchanged_copies(at: Tokens) -> FloatColumn:
    """Local keys and values, and as many gradients, that context parallelism holds besides a rank's own.

    Ring attention receives one block while it works on another (arXiv 2310.01889, section 3); gathered attention holds
    those of all ranks (arXiv 2407.21783, section 3.3.2); Ulysses sends what it receives (arXiv 2309.14509).
    """
    ranks = at.table.context_parallel_size
    copies = np.where(at.table.is_choice("context_parallel_kind", "all-gather"), 2.0 * (ranks - 1), 2.0)
    return np.where(ranks > 1, copies, 0.0)


def _working_feed_forward(block: Block, at: Tokens) -> FloatColumn:
    """The gradient of what the activation read, when that of its output has taken the place of the output."""
    mixture = block.feed_forward
    if isinstance(mixture, FeedForward):
        widths = (2.0 if mixture.gated else 1.0) * mixture.hidden
        return at.element * widths * at.count * at.tensor
    routed = (2.0 if mixture.routed.gated else 1.0) * mixture.routed.hidden / at.table.expert_tensor_parallel_size
    return at.element * dispatched_tokens(mixture, at) * (routed + at.problem.model.hidden_size)
