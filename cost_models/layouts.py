"""Which layers go to which model chunk where a strategy does not say: the contract's default layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from cost_models.architecture import Attention, Block, FeedForward, Linear, MixtureOfExperts, ModelArchitecture
from cost_models.distinct import distinct_rows
from cost_models.strategy import FloatColumn, IntColumn

NO_LAYOUT: tuple[int, ...] = ()
"""Of a strategy with more model chunks than layers: there is nothing to place, and the rules say so."""


def default_layout(
    model: ModelArchitecture, pipeline: int, virtual: int, *, ends_count_as_layers: bool, by_cost: bool = False
) -> tuple[int, ...]:
    """Layers of each model chunk in model order.

    With `by_cost` as `running_cost_layout` says. Else equal where it divides; with `ends_count_as_layers` the embedding
    and the loss counted as a layer each where that divides (Megatron-LM's --account-for-embedding-in-pipeline-split and
    --account-for-loss-in-pipeline-split); else best-balanced.
    """
    chunks = pipeline * virtual
    if by_cost:
        return running_cost_layout(model, chunks) if chunks <= model.layers else NO_LAYOUT
    if model.layers % chunks == 0:
        return (model.layers // chunks,) * chunks
    if ends_count_as_layers and (model.layers + 2) % chunks == 0:
        # With as many chunks as layers and ends, the embedding and the loss have a chunk each to themselves.
        each = (model.layers + 2) // chunks
        return (each - 1, *(each,) * (chunks - 2), each - 1)
    return balanced_layout(model, pipeline, virtual) if chunks <= model.layers else NO_LAYOUT


def running_cost_layout(model: ModelArchitecture, chunks: int) -> tuple[int, ...]:
    """The layout that nanotron computes (nanotron/models/base.py, build_model).

    Layers in order, each to the chunk whose turn it is; the next has its turn once the cost so far is more than the
    chunks so far would have at equal shares. The head may take the shares of several chunks, which stay empty then.
    """
    costs = tuple(_nanotron_cost(model, block) for block in model.blocks)
    return _running_cost(model.layer_blocks, costs, model.hidden_size * model.vocab_size, chunks)


@lru_cache(maxsize=4096)
def _running_cost(layer_blocks: tuple[int, ...], costs: tuple[int, ...], head: int, chunks: int) -> tuple[int, ...]:
    """By the cost of each distinct block and of the head; embedding, final norm and loss cost nothing."""
    total = sum(costs[kind] for kind in layer_blocks) + head
    layout = [0] * chunks
    chunk, so_far = 0, 0
    for kind in layer_blocks:
        layout[chunk] += 1
        so_far += costs[kind]
        chunk += so_far * chunks > total * (chunk + 1)
    return tuple(layout)


def _nanotron_cost(model: ModelArchitecture, block: Block) -> int:
    """What nanotron's get_block_compute_costs says of a layer: four matrices of attention, whatever the number of key
    and value heads, and three of the perceptron (two of a plain one)."""
    heads = block.attention.heads
    part = block.feed_forward.routed if isinstance(block.feed_forward, MixtureOfExperts) else block.feed_forward
    matrices = 3 if part.gated else 2
    return (4 * heads * (model.hidden_size // heads) + matrices * part.hidden) * model.hidden_size


def balanced_layout(model: ModelArchitecture, pipeline: int, virtual: int) -> tuple[int, ...]:
    """The layout whose busiest stage has the least to do, with at least one layer in every chunk.

    Counted in layers: the head is worth `head_cost_in_layers`, the embedding nothing (a lookup multiplies no matrix),
    but of equally busy stages the first and the last get their layers last. Ties go to the later stage, which keeps
    fewer micro-batches in flight (arXiv 2104.04473, section 2.2).
    """
    return _balanced(model.layers, head_cost_in_layers(model), pipeline, virtual)


@lru_cache(maxsize=4096)
def _balanced(layers: int, head: float, pipeline: int, virtual: int) -> tuple[int, ...]:
    stages = _spread(layers - pipeline * virtual, [0.0] * (pipeline - 1) + [head])
    layout = [0] * (pipeline * virtual)
    for stage, extra in enumerate(stages):
        ends = [0.0] * virtual
        ends[-1] += head if stage == pipeline - 1 else 0.0
        layout[stage::pipeline] = [1 + more for more in _spread(extra, ends)]
    return tuple(layout)


def _spread(items: int, loads: list[float]) -> list[int]:
    """Equal items over places that carry `loads` already, so that the fullest carries least.

    Putting each item where there is least is optimal for equal items (P. Brucker, Scheduling Algorithms, 5.1).
    """
    last = len(loads) - 1
    order = [*range(last - 1, 0, -1), *([0] if last else []), last]
    counts = [0] * len(loads)
    for _ in range(items):
        place = min(order, key=lambda index: loads[index] + counts[index])
        counts[place] += 1
    return counts


def head_cost_in_layers(model: ModelArchitecture) -> float:
    """Matrix FLOP of the head over those of the model's most frequent block, for one token."""
    block = model.blocks[Counter(model.layer_blocks).most_common(1)[0][0]]
    rows = 0.0 if model.is_classifier else 1.0  # one token of many
    return rows * model.hidden_size * model.vocab_size / _matrix_elements(block)


def _matrix_elements(block: Block) -> int:
    part = block.feed_forward
    elements = _attention_elements(block.attention)
    if block.cross_attention is not None:
        elements += _attention_elements(block.cross_attention)
    if isinstance(part, FeedForward):
        return elements + _elements(part.linears)
    return elements + _mixture_elements(part)


def _mixture_elements(part: MixtureOfExperts) -> int:
    routed = _elements(part.routed.linears) * part.experts_per_token // part.experts
    shared = _elements(part.shared.linears) if part.shared else 0
    return routed + shared + _elements((part.router,))


def _attention_elements(part: Attention) -> int:
    return _elements(part.linears)


def _elements(linears: Sequence[Linear]) -> int:
    return sum(linear.copies * linear.in_features * linear.out_features for linear in linears)


def largest_stages(layouts: Sequence[tuple[int, ...]], layout: IntColumn, pipeline: IntColumn) -> IntColumn:
    """Layers of the largest stage of every strategy."""
    return busiest_stages(layouts, layout, pipeline, 0.0).astype(np.int64)


def busiest_stages(
    layouts: Sequence[tuple[int, ...]], layout: IntColumn, pipeline: IntColumn, head: float
) -> FloatColumn:
    """Work of the busiest stage of every strategy in layers, the head counted as so many on the last one."""
    first, which = distinct_rows([layout, pipeline])
    busiest = [_busiest_stage(layouts[layout[row]], int(pipeline[row]), head) for row in first]
    result: FloatColumn = np.array(busiest, dtype=np.float64)[which]
    return result


def _busiest_stage(layout: tuple[int, ...], pipeline: int, head: float) -> float:
    # Chunk c lives on rank c mod pipeline; a layout may be shorter than the pipeline, which the rules refuse.
    stages = range(min(pipeline, len(layout)))
    return max((sum(layout[stage::pipeline]) + head * (stage == pipeline - 1) for stage in stages), default=0.0)


@lru_cache(maxsize=65_536)
def recomputed_in_each_chunk(chunks: tuple[int, ...], stages: int, layers: int) -> int | None:
    """How many layers of every model chunk are recomputed where each stage recomputes so many: Megatron counts them in
    a chunk (--recompute-num-layers). None: no number does it for all stages."""
    for number in range(1, max(chunks, default=0) + 1):
        recomputed = [sum(min(number, own) for own in chunks[stage::stages]) for stage in range(stages)]
        if recomputed == [min(layers, sum(chunks[stage::stages])) for stage in range(stages)]:
            return number
    return None
