"""How Megatron-LM's arguments cut a model into pipeline stages."""

from __future__ import annotations

from typing import Final

from app.run_logs.facts import Facts
from app.run_logs.megatron_arguments import ArgumentWords

MOST_STAGES: Final = 10_000


def say_stages(words: ArgumentWords, facts: Facts, pipeline: int) -> None:
    """Note the chunks of each of `pipeline` stages, their schedule, and the layers of each where they are not even."""
    layers = words.integer("num_layers")
    virtual = words.integer("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    each = words.integer("num_layers_per_virtual_pipeline_stage")
    if virtual is None and each and layers:
        virtual = layers // pipeline // each
    virtual = virtual or 1
    facts.say("strategy.virtual_pipeline_size", virtual)
    facts.say("strategy.pipeline_schedule", "interleaved" if virtual > 1 else "1f1b")
    first = words.integer("decoder_first_pipeline_num_layers")
    last = words.integer("decoder_last_pipeline_num_layers")
    uneven = first or last or words.on("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    if words.text("pipeline_model_parallel_layout") not in ("", "none") or (uneven and virtual > 1):
        facts.ask("strategy.layers_per_stage")
    elif uneven and layers and pipeline > 1:
        split = _uneven(words, layers, pipeline, first, last)
        if split:
            facts.say("strategy.layers_per_stage", split)
        else:
            facts.ask("strategy.layers_per_stage")


def _uneven(words: ArgumentWords, layers: int, stages: int, first: int | None, last: int | None) -> list[int] | None:
    """Layers of each stage where the ends have fewer: as stated, or counted as one layer for embedding and loss."""
    if stages > MOST_STAGES:
        return None
    if first or last:
        middle = stages - bool(first) - bool(last)
        rest = layers - (first or 0) - (last or 0)
        if rest < 0 or (middle == 0) != (rest == 0) or (middle and rest % middle):
            return None
        return [*([first] if first else []), *[rest // middle if middle else 0] * middle, *([last] if last else [])]
    embedding = words.on("account_for_embedding_in_pipeline_split")
    loss = words.on("account_for_loss_in_pipeline_split")
    each, remainder = divmod(layers + embedding + loss, stages)
    if remainder or each == 0:
        return None
    split = [each] * stages
    split[0] -= embedding
    split[-1] -= loss
    return split
