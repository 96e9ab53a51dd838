"""Encoder-decoder models: over which ranks their two stacks are spread. A pipeline would have to pass on the encoder's
output besides; context parallelism pairs pieces of one causal sequence."""

from __future__ import annotations

from typing import Final

from cost_models.rules.view import Rule, View
from cost_models.strategy import BoolColumn


def _pipeline(view: View) -> BoolColumn | bool:
    return view.model.is_encoder_decoder and view.pipeline > 1


def _pipeline_says(view: View) -> str:
    return f"encoder-decoder models are not priced with a pipeline (pipeline_parallel_size {view.pipeline[0]})"


def _context(view: View) -> BoolColumn | bool:
    return view.model.is_encoder_decoder and view.context > 1


def _context_says(view: View) -> str:
    return f"encoder-decoder models are not priced with context parallelism (context_parallel_size {view.context[0]})"


TWO_STACKS: Final = (
    Rule("pipeline_unsupported", _pipeline, _pipeline_says),
    Rule("context_unsupported", _context, _context_says),
)
