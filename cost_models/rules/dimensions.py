"""The model's dimensions: heads, widths and the sequence, divided by what splits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from cost_models.rules.view import Dimensions, Rule, View, divides, first_undivided
from cost_models.strategy import BoolColumn, IntColumn, code


def _head_parts(view: View) -> IntColumn:
    # All-to-all context parallelism hands out heads (arXiv 2309.14509, section 3.1); the other kinds do not.
    scatters = view.table.context_parallel_kind == code("context_parallel_kind", "all-to-all")
    return view.tensor * np.where(scatters, view.context, 1)


def _head_rule(code_: str, noun: str, sizes: Callable[[Dimensions], tuple[int, ...]]) -> Rule:
    def says(view: View) -> str:
        parts = int(_head_parts(view)[0])
        tensor = int(view.tensor[0])
        by = f"tensor_parallel_size {tensor}"
        if parts != tensor:
            by += f" x context_parallel_size {view.context[0]} (all-to-all)"
        return f"{first_undivided(sizes(view.dimensions), parts)} {noun} do not divide by {by}"

    return Rule(code_, lambda view: ~divides(sizes(view.dimensions), _head_parts(view)), says)


def _ffn(view: View) -> BoolColumn:
    return ~divides(view.dimensions.ffn_widths, view.tensor)


def _ffn_says(view: View) -> str:
    tensor = int(view.tensor[0])
    width = first_undivided(view.dimensions.ffn_widths, tensor)
    return f"ffn_hidden_size {width} does not divide by tensor_parallel_size {tensor}"


def _expert_ffn(view: View) -> BoolColumn:
    return ~divides(view.dimensions.expert_widths, view.expert_tensor)


def _expert_ffn_says(view: View) -> str:
    parts = int(view.expert_tensor[0])
    width = first_undivided(view.dimensions.expert_widths, parts)
    return f"expert_ffn_hidden_size {width} does not divide by expert_tensor_parallel_size {parts}"


def _context_pieces(view: View) -> IntColumn:
    chunks = view.number(lambda framework: framework.context_chunks)
    return np.where(view.context > 1, view.context * chunks, 1)


def _context_sequence(view: View) -> BoolColumn:
    return view.sequence_length % _context_pieces(view) > 0


def _context_sequence_says(view: View) -> str:
    size, chunks = int(view.context[0]), view.framework.context_chunks
    by = f"{chunks} x context_parallel_size {size} (each rank holds {chunks} pieces)"
    return (
        f"sequence_length {view.sequence_length} does not divide by "
        f"{by if chunks > 1 else f'context_parallel_size {size}'}"
    )


def _tensor_pieces(view: View) -> IntColumn:
    return np.where(view.table.sequence_parallel, view.tensor * view.context, 1)


def _tensor_sequence(view: View) -> BoolColumn:
    return view.sequence_length % _tensor_pieces(view) > 0


def _tensor_sequence_says(view: View) -> str:
    context = int(view.context[0])
    by = f"tensor_parallel_size {view.tensor[0]}" + (f" x context_parallel_size {context}" if context > 1 else "")
    return f"sequence_length {view.sequence_length} does not divide by {by} (sequence parallelism)"


DIMENSIONS: Final = (
    _head_rule("heads_not_divisible", "heads", lambda model: model.heads),
    # Megatron-Core 0.14 (num_query_groups), torchtitan and nanotron do not replicate key-value heads over tensor ranks.
    _head_rule("kv_heads_not_divisible", "key-value heads", lambda model: model.key_value_heads),
    Rule("ffn_not_divisible", _ffn, _ffn_says),
    Rule("ffn_not_divisible", _expert_ffn, _expert_ffn_says),
    Rule("sequence_not_divisible", _context_sequence, _context_sequence_says),
    Rule("sequence_not_divisible", _tensor_sequence, _tensor_sequence_says),
)
