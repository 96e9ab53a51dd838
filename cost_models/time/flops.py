"""FLOP of a step: what the model needs, and what recomputation adds.

6 FLOP per matrix parameter that a token uses (arXiv 2001.08361 section 2.1), the head included, plus attention over
every key (arXiv 2104.04473 equation 3 counts it in full, not halved for the causal mask). LoRA needs no gradient of
frozen weights: 4 instead of 6.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.adapters import adapted_linears
from cost_models.architecture import Attention, Block, MixtureOfExperts, ModelArchitecture
from cost_models.problem import Problem
from cost_models.strategy import RECOMPUTE_MODULES, FloatColumn, StrategyTable, code
from cost_models.time.cases import LayerCases
from cost_models.time.early_stop import spares_last_product
from cost_models.time.linears import dense_feed_forward, up_projections
from cost_models.time.operators import visible_span
from cost_models.time.picked_stages import PickedStages
from cost_models.time.precision import recomputed_products


def attention_flops(attention: Attention, sequence: float) -> float:
    """Forward, per token, masked keys counted; a window limits them."""
    keys = min(sequence, float(attention.window)) if attention.window else sequence
    return 2 * attention.heads * (attention.head_dim + attention.value_head_dim) * keys


def _core_flops(block: Block, sequence: float) -> float:
    return sum(attention_flops(attention, sequence) for attention in block.attentions)


def active_matrix_parameters(block: Block) -> float:
    """Weights of linear layers that a token goes through."""
    attention = sum(linear.in_features * linear.out_features for linear in block.attention_linears)
    return attention + _feed_forward_parameters(block)


def _over_layers(model: ModelArchitecture, of_block: Callable[[Block], float]) -> float:
    """Sum over all layers of what a block of each kind has, which is worked out once."""
    each = [of_block(block) for block in model.blocks]
    return sum(each[kind] for kind in model.layer_blocks)


def model_flops(problem: Problem) -> float:
    """Of the whole step on all GPUs."""
    model, sequence = problem.model, float(problem.workload.sequence_length)
    fine_tuning = problem.workload.fine_tuning
    matrices = float(_over_layers(model, active_matrix_parameters))
    head = float(model.hidden_size * model.vocab_size)
    if model.is_classifier:
        # By token: of a sequence one goes through the head, all but that one through the patch projection.
        head = (head + (sequence - 1) * model.patch_elements * model.hidden_size) / sequence
    attention = 3 * _over_layers(model, lambda block: _core_flops(block, sequence))
    if fine_tuning is None:
        return problem.workload.tokens * (6 * (matrices + head) + attention)
    adapters = _over_layers(model, lambda block: _adapter_parameters(block, problem))
    head_work = (6 if "head" in fine_tuning.modules_to_save else 4) * head
    return problem.workload.tokens * (4 * matrices + head_work + 6 * adapters + attention)


def skipped_flops(problem: Problem) -> float:
    """Of `model_flops`, those of masked keys, which flash kernels do not work out."""
    if problem.workload.attention != "flash":
        return 0.0
    sequence = float(problem.workload.sequence_length)
    skipped = _over_layers(
        problem.model, lambda block: sum(_masked_flops(attention, sequence) for attention in block.attentions)
    )
    return 3 * problem.workload.tokens * skipped


def _masked_flops(attention: Attention, sequence: float) -> float:
    """Of `attention_flops`, those of masked keys."""
    reach = min(sequence, float(attention.window)) if attention.window else sequence
    span = float(visible_span(np.array([sequence]), causal=attention.causal, window=attention.window)[0])
    return attention_flops(attention, sequence) * (1 - span / reach)


def recompute_flops(problem: Problem, picked: PickedStages, cases: LayerCases) -> FloatColumn:
    """What checkpointing computes again in one step on all GPUs, by distinct pipeline."""
    per_token = np.stack([_recomputed(block, problem, cases.table) for block in problem.model.blocks], axis=1)
    return picked.total(picked.held.again * picked.held.inside(per_token)) * problem.workload.tokens


def _feed_forward_parameters(block: Block) -> float:
    part = block.feed_forward
    if not isinstance(part, MixtureOfExperts):
        return float(sum(linear.in_features * linear.out_features for linear in part.linears))
    return _routed_parameters(part) + _shared_parameters(part)


def _routed_parameters(part: MixtureOfExperts) -> float:
    return float(sum(w.in_features * w.out_features for w in part.routed.linears) * part.experts_per_token)


def _shared_parameters(part: MixtureOfExperts) -> float:
    linears = (
        part.router,
        *(part.shared.linears if part.shared else ()),
        *((part.shared_gate,) if part.shared_gate else ()),
    )
    return float(sum(linear.in_features * linear.out_features for linear in linears))


def _adapter_parameters(block: Block, problem: Problem) -> float:
    fine_tuning = problem.workload.fine_tuning
    if fine_tuning is None:
        return 0.0
    experts = block.experts
    total = 0.0
    for linear in adapted_linears(block, fine_tuning):
        used = experts.experts_per_token if experts and linear.copies > 1 else 1
        total += used * fine_tuning.rank * (linear.in_features + linear.out_features)
    return total


def _recomputed(block: Block, problem: Problem, table: StrategyTable) -> FloatColumn:
    """Forward FLOP per token of one layer that are computed twice."""
    core = _core_flops(block, float(problem.workload.sequence_length))
    products = 2 * active_matrix_parameters(block)
    mask = table.recompute_modules
    full = table.activation_checkpointing == code("activation_checkpointing", "full")
    selective = table.activation_checkpointing == code("activation_checkpointing", "selective")
    experts = block.experts
    dense = 2 * (_shared_parameters(experts) if experts else _feed_forward_parameters(block))
    routed = 2 * _routed_parameters(experts) if experts else 0.0
    ups = 2 * sum(w.in_features * w.out_features for w in up_projections(block))
    by_module = {"core_attn": core, "mla_up_proj": ups, "mlp": dense, "moe": routed}
    modules = sum((mask >> RECOMPUTE_MODULES.index(name) & 1) * work for name, work in by_module.items())
    by_policy = np.where(mask == 0, recomputed_products(table) * products, modules)
    last = 2 * sum(w.in_features * w.out_features for w in dense_feed_forward(block.feed_forward)[-1:])
    whole = core + products - spares_last_product(problem, block, table) * last
    again: FloatColumn = np.where(full, whole, np.where(selective, by_policy, 0.0))
    return again
