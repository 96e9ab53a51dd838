"""How Megatron-LM's arguments cut a model into pipeline stages.

Source: NVIDIA/Megatron-LM `megatron/training/arguments.py` (validate_args) and Megatron-Core
`transformer/pipeline_parallel_layer_layout.py` (`parse_str_to_list`), `transformer/transformer_block.py`
(`get_num_layers_to_build`).
"""

from __future__ import annotations

import re
from typing import Any, Final

from search.launch.megatron_options import MegatronOptions

LAYOUT: Final = "--pipeline-model-parallel-layout"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
MOST_LAYERS: Final = 10_000
_GROUP: Final = re.compile(r"\(([^()]+)\)\*(\d{1,5})")
_ONE: Final = re.compile(r"([^()*\d])\*(\d{1,5})")


def read_layout(options: MegatronOptions) -> dict[str, Any]:
    """Chunks of a stage, their schedule, and, where the number of layers is known, the layers of each."""
    stages = options.size("--pipeline-model-parallel-size", 1)
    layers = options.known_size("--num-layers")
    if LAYOUT in options:
        chunks = _spelled_out(options, stages, layers)
        virtual = len(chunks) // stages
    else:
        virtual = _virtual(options, stages, layers)
        chunks = [] if layers is None else _counted(options, layers, stages, virtual)
    if options.flag("--no-overlap-p2p-communication") and options.flag("--overlap-grad-reduce"):
        options.leave("--no-overlap-p2p-communication")
    found: dict[str, Any] = {
        "virtual_pipeline_size": virtual,
        "pipeline_schedule": "interleaved" if virtual > 1 else "1f1b",
    }
    return {**found, "layers_per_stage": chunks} if chunks else found


def _spelled_out(options: MegatronOptions, stages: int, layers: int | None) -> list[int]:
    text = options.text(LAYOUT, "").replace(",", "")
    for pattern in (_GROUP, _ONE):
        unrolled = sum(int(found.group(2)) * len(found.group(1)) for found in pattern.finditer(text))
        if unrolled > 2 * MOST_LAYERS:
            raise options.error(LAYOUT, "too_large", f"more than {MOST_LAYERS} layers")
        text = pattern.sub(lambda found: found.group(1) * int(found.group(2)), text)
    if not re.fullmatch(r"E[tm|]*L", text):
        raise options.error(LAYOUT, "unknown_value", "must be stages of t and m between E and L, split by |")
    chunks = [chunk.count("t") for chunk in text.split("|")]
    if len(chunks) % stages:
        raise options.error(LAYOUT, "unknown_value", f"{len(chunks)} chunks are no multiple of {stages} stages")
    if layers is not None and sum(chunks) != layers:
        raise options.error(LAYOUT, "layers_not_divisible", f"it has {sum(chunks)} layers, --num-layers {layers}")
    if "m" in text:
        options.leave(LAYOUT)
    return chunks


def _virtual(options: MegatronOptions, stages: int, layers: int | None) -> int:
    virtual = options.size("--num-virtual-stages-per-pipeline-rank", 1)
    each = options.known_size("--num-layers-per-virtual-pipeline-stage")
    if each is None or layers is None:
        return virtual
    counted = layers + options.flag(EMBEDDING) + options.flag(LOSS)
    if counted % (stages * each):
        name = "--num-layers-per-virtual-pipeline-stage"
        raise options.error(name, "layers_not_divisible", f"{counted} layers are no multiple of {stages} x {each}")
    return counted // (stages * each)


def _counted(options: MegatronOptions, layers: int, stages: int, virtual: int) -> list[int]:
    """Layers of each chunk, in model order, where stages are equal but for the ends."""
    ends = [options.known_size(name) for name in (FIRST, LAST)]
    if any(end is not None for end in ends):
        first, last = ends
        middle = stages - (first is not None) - (last is not None)
        rest = layers - (first or 0) - (last or 0)
        if rest < 0 or (middle == 0) != (rest == 0) or (middle and rest % middle):
            raise options.error(FIRST, "layers_not_divisible", f"{rest} layers do not fill {middle} stages")
        stage = [*([] if first is None else [first]), *[rest // middle if middle else 0] * middle]
        return _in_chunks(options, [*stage, *([] if last is None else [last])], virtual)
    embedding, loss = options.flag(EMBEDDING), options.flag(LOSS)
    each, over = divmod(layers + embedding + loss, stages * virtual)
    if over or each == 0:
        name = "--pipeline-model-parallel-size"
        raise options.error(name, "layers_not_divisible", f"{layers} layers do not fill {stages} x {virtual} chunks")
    chunks = [each] * (stages * virtual)
    chunks[0] -= embedding
    chunks[-1] -= loss
    return chunks


def _in_chunks(options: MegatronOptions, stage: list[int], virtual: int) -> list[int]:
    if any(layers % virtual for layers in stage):
        raise options.error(FIRST, "layers_not_divisible", f"{stage} layers a stage do not split into {virtual} chunks")
    return [layers // virtual for layers in stage] * virtual
