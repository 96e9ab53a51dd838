"""What attention keeps between its norm and the residual stream."""

from __future__ import annotations

import numpy as np

from cost_models.adapters import keeps_input
from cost_models.architecture import Attention, LatentAttention
from cost_models.memory.facts import flag
from cost_models.memory.saved_norms import kept_by_inner_norm, statistics_bytes
from cost_models.memory.tokens import Tokens
from cost_models.strategy import FloatColumn

_SOFTMAX_STATISTIC_BYTES = 4.0
"""Flash attention keeps the fp32 log-sum-exp of each query and head (arXiv 2307.08691, section 3.1)."""


def kept_by_attention(attention: Attention, at: Tokens) -> dict[str, FloatColumn]:
    """By the fields of `Saved`."""
    flash = at.problem.workload.attention == "flash"
    queries = attention.heads * attention.head_dim
    keys = attention.key_value_heads * attention.head_dim
    output = attention.heads * attention.value_head_dim
    inner = at.count * at.tensor
    if flash:
        inputs = queries + keys + _flash_values(attention, at)
        core = np.full_like(inner, attention.heads * _SOFTMAX_STATISTIC_BYTES)
    else:
        values = attention.key_value_heads * attention.value_head_dim
        # Plain attention expands keys and values to all heads; those of a single head need no copy for one sample.
        whole = at.eager & (attention.key_value_heads == 1) & (at.table.micro_batch_size == 1)
        inputs = queries + np.where(whole, keys + values, queries + output) + _widened(attention, at)
        # Compiled softmax keeps the largest score and the sum of a query, in fp32.
        core = attention.heads * at.keys * _score_bytes(attention, at)
        core = core + np.where(at.table.compile & ~at.fused, 2.0 * _SOFTMAX_STATISTIC_BYTES * attention.heads, 0.0)
    inputs = inputs + _behind_values(attention, at)
    projected = np.where(at.eager & (attention.latent is not None) & flash, queries, output)
    parts = {
        "queries_keys_values": at.element * inputs * inner,
        "attention_core": core * inner,
        "attention_output": (_first_output(at) * projected + _further_outputs(attention, at) * output) * inner,
        "latents": np.zeros_like(inner),
    }
    if attention.latent is not None:
        parts["latents"] = _latents(attention.latent, at)
    elif attention.norms:
        # q and k norms keep their inputs
        normed = kept_by_inner_norm(at, attention.norm_parameters > 0)
        heads = (attention.heads + attention.key_value_heads) * statistics_bytes(at)
        parts["queries_keys_values"] = parts["queries_keys_values"] + (normed * (queries + keys) + heads) * inner
    return parts


def more_before_recomputed_core(attention: Attention, at: Tokens) -> FloatColumn:
    """Bytes of queries, keys and values that Megatron's recomputation of core attention keeps more than the core does.

    Not yet expanded; but values are a view of the tensor that queries and keys came from before they were rotated
    (megatron/core/transformer/attention.py; latent attention makes them contiguous). Fused kernels hold that tensor
    with and without recomputation: their users measure the same peak either way (NVIDIA/Megatron-LM issues 464, 1886).
    """
    if at.problem.workload.attention == "flash":
        return np.zeros_like(at.count)
    queries, keys = attention.heads * attention.head_dim, attention.key_value_heads * attention.head_dim
    values = attention.key_value_heads * attention.value_head_dim
    rotated = at.problem.model.position_embeddings == "rotary" and attention.latent is None
    more = float(queries + keys) if rotated else 0.0
    more += keys + values - queries - attention.heads * attention.value_head_dim
    return at.element * more * at.count * at.tensor


def _widened(attention: Attention, at: Tokens) -> FloatColumn:
    """What queries and keys of all heads take more in fp32, in elements; autocast narrows them again."""
    in_fp32 = at.eager & at.plain.fp32_products & ~at.autocast & (at.element < 4.0)
    return np.where(in_fp32, 2.0 * attention.heads * attention.head_dim, 0.0)


def _flash_values(attention: Attention, at: Tokens) -> FloatColumn:
    """transformers pads narrow values to the width of keys (integrations/flash_attention.py)."""
    return attention.key_value_heads * np.where(at.eager, attention.head_dim, attention.value_head_dim)


def _behind_values(attention: Attention, at: Tokens) -> FloatColumn:
    """Elements that stay because values are a view of them.

    Queries and keys are rotated into tensors of their own, values stay where one matrix put all three (`qkv`), or put
    them beside the keys' unrotated part (latent attention). Products of many samples, and keys and values that are
    expanded or padded, copy them out.
    """
    flash = at.problem.workload.attention == "flash"
    latent = attention.latent
    single = at.table.micro_batch_size == 1
    if latent is not None:
        beside = attention.heads * (attention.head_dim - latent.rope_head_dim)
        return np.where(at.eager, np.where(single & (not flash), beside, 0.0), np.where(at.fused, 0.0, beside))
    one_matrix = any(w.name == "qkv" for w in attention.linears) and at.problem.model.position_embeddings == "rotary"
    grouped = attention.heads != attention.key_value_heads
    viewed = at.eager & one_matrix & (flash | (single & (not grouped)))
    return np.where(viewed, (attention.heads + attention.key_value_heads) * attention.head_dim, 0.0)


def _first_output(at: Tokens) -> FloatColumn:
    """Bytes of an element of what the kernel wrote: one tensor in 16 bit; beside it an 8-bit copy under fp8."""
    if at.problem.workload.attention != "flash":
        return at.linear_input * keeps_input("o", at.problem.workload.fine_tuning)
    return at.element + np.where(at.linear_input < at.element, at.linear_input, 0.0)


def _further_outputs(attention: Attention, at: Tokens) -> FloatColumn:
    """Bytes of an element of copies that the projection reads instead."""
    # Ulysses exchanges the kernel's output, so that the projection reads another tensor (arXiv 2309.14509).
    exchanged = (at.table.context_parallel_size > 1) & at.table.is_choice("context_parallel_kind", "all-to-all")
    copied = exchanged | flag(at.table, "attention_output_copied")
    if at.problem.workload.attention == "flash":
        copied = copied | (at.eager & (at.plain.joined_heads or attention.latent is not None))
        copied = copied | (at.casts_adapted & (keeps_input("o", at.problem.workload.fine_tuning) > 0))
    return np.where(copied, at.element, 0.0)


def _latents(latent: LatentAttention, at: Tokens) -> FloatColumn:
    """Down-projections that their norms read, and the norms' outputs that the up-projections read."""
    ranks = latent.kv_rank + (latent.q_rank or 0)
    norms = 1.0 if latent.q_rank is None else 2.0
    # The rotary share of the keys lies in the storage that the norm reads, unless that makes an fp32 copy.
    copied = at.written_out & (at.plain.norm != "kernel") & (at.element < 4.0)
    rotary = np.where(copied, 0.0, at.element * latent.rope_head_dim)
    kept = (kept_by_inner_norm(at) + at.element) * ranks + rotary + norms * statistics_bytes(at)
    return kept * at.count * at.residual


def _score_bytes(attention: Attention, at: Tokens) -> FloatColumn:
    """Bytes of a query-key pair: probabilities, with dropout a mask and the dropped ones (arXiv 2205.05198, eq. 1)."""
    plain = np.where(at.autocast | at.plain.fp32_scores, 4.0, at.element)
    softmax = np.where(at.fused, at.element, np.where(at.eager, plain, 4.0))
    # torch.compile keeps the scores as the product wrote them, and works the softmax out again.
    compiled = at.table.compile & ~at.fused
    softmax = np.where(compiled, at.element, softmax)
    if at.problem.workload.dropout > 0:
        probabilities = softmax + 1.0 + at.element
    else:
        # The product reads what the softmax wrote, or what that was rounded to.
        probabilities = softmax + np.where((softmax == at.element) & ~compiled, 0.0, at.element)
    return probabilities + (at.element if attention.soft_cap else 0.0)
