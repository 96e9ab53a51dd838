"""Pipelines: layers over chunks, schedules, and micro-batches under interleaving."""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.rules.view import Rule, View
from cost_models.strategy import BoolColumn, IntColumn


def _chunks(view: View) -> IntColumn:
    return view.pipeline * view.virtual


def _misplaced(view: View) -> BoolColumn:
    layouts = view.table.layouts
    lengths = np.array([len(layout) for layout in layouts], dtype=np.int64)
    sums = np.array([sum(layout) for layout in layouts], dtype=np.int64)
    which = view.table.layers_per_stage
    broken: BoolColumn = (lengths[which] != _chunks(view)) | (sums[which] != view.model.layers)
    return broken


def _too_few_layers(view: View) -> BoolColumn:
    # A chunk without layers has to be asked for.
    return (_chunks(view) > view.model.layers) & _misplaced(view)


def _too_few_layers_says(view: View) -> str:
    pipeline, virtual = view.value("pipeline_parallel_size"), view.value("virtual_pipeline_size")
    return (
        f"{view.model.layers} layers do not fill pipeline_parallel_size {pipeline} x virtual_pipeline_size {virtual} = "
        f"{pipeline * virtual} chunks; layers_per_stage can leave some empty"
    )


def _layers(view: View) -> BoolColumn:
    return (_chunks(view) <= view.model.layers) & _misplaced(view)


def _layers_say(view: View) -> str:
    layout = view.value("layers_per_stage")
    return (
        f"layers_per_stage places {sum(layout)} layers on {len(layout)} chunks, but the model has {view.model.layers} "
        f"layers and the strategy {_chunks(view)[0]} chunks"
    )


def _uneven(view: View) -> BoolColumn:
    uneven = np.array([len(set(layout)) > 1 for layout in view.table.layouts], dtype=np.bool_)
    return uneven[view.table.layers_per_stage] & ~view.able(lambda framework: framework.uneven_layers)


def _uneven_says(view: View) -> str:
    layout = view.value("layers_per_stage")
    return f"{view.framework.name} needs the same number of layers in every chunk, not {layout}"


def _virtual(view: View) -> BoolColumn:
    broken: BoolColumn = (view.virtual > 1) & (view.pipeline == 1)
    return broken


def _virtual_says(view: View) -> str:
    return f"virtual_pipeline_size {view.value('virtual_pipeline_size')} needs pipeline_parallel_size > 1"


def _interleaved(view: View) -> BoolColumn:
    whole = view.workload.global_batch_size % (view.data * view.micro_batch) == 0
    broken: BoolColumn = (
        view.table.is_choice("pipeline_schedule", "interleaved") & (view.pipeline > 1) & (view.virtual > 1) & whole
    )
    return broken


def _too_few_micro_batches(view: View) -> BoolColumn:
    # Megatron-Core's micro-batch group holds from `stages` to all micro-batches of a step, so any m >= stages will do.
    return _interleaved(view) & (view.micro_batches < view.pipeline)


def _too_few_micro_batches_says(view: View) -> str:
    return (
        f"the interleaved schedule needs at least pipeline_parallel_size {view.value('pipeline_parallel_size')} "
        f"micro-batches, there are {view.micro_batches[0]}"
    )


def _uneven_rounds(view: View) -> BoolColumn:
    rounds = np.maximum(view.micro_batches // view.pipeline, 1)
    whole = view.able(lambda framework: framework.interleaving_needs_whole_rounds)
    broken: BoolColumn = _interleaved(view) & whole & (view.micro_batches % rounds > 0)
    return broken


def _uneven_rounds_say(view: View) -> str:
    count, stages = int(view.micro_batches[0]), int(view.pipeline[0])
    return (
        f"{count} micro-batches do not split evenly into {count // stages} rounds of at least {stages} stages, as "
        f"{view.framework.name}'s interleaved schedule needs"
    )


def _schedule(view: View) -> BoolColumn:
    able = view.able(lambda framework: bool(framework.pipeline_schedules))
    allowed = view.allows("pipeline_schedule", lambda framework: framework.pipeline_schedules)
    return able & (view.pipeline > 1) & ~allowed


def _schedule_says(view: View) -> str:
    return f"{view.framework.name} has no {view.value('pipeline_schedule')} schedule"


def _interleaved_without_virtual(view: View) -> BoolColumn:
    broken: BoolColumn = view.table.is_choice("pipeline_schedule", "interleaved") & (view.virtual == 1)
    return broken


def _interleaved_without_virtual_says(view: View) -> str:
    return f"the interleaved schedule needs virtual_pipeline_size > 1, not {view.value('virtual_pipeline_size')}"


def _one_chunk(view: View) -> BoolColumn:
    return (view.virtual > 1) & ~view.table.is_choice("pipeline_schedule", "interleaved", "zero-bubble")


def _one_chunk_says(view: View) -> str:
    schedule, virtual = view.value("pipeline_schedule"), view.value("virtual_pipeline_size")
    return f"the {schedule} schedule has one chunk a stage, not virtual_pipeline_size {virtual}"


def _zero_bubble(view: View) -> BoolColumn:
    # Two chunks a stage: ZB-V (arXiv 2401.10241, section 5); one: ZB-H1.
    able = view.able(lambda framework: bool(framework.zero_bubble_chunks))
    one = view.able(lambda framework: 1 in framework.zero_bubble_chunks)
    two = view.able(lambda framework: 2 in framework.zero_bubble_chunks)
    fits = ((view.virtual < 2) & one) | ((view.virtual == 2) & two)
    broken: BoolColumn = view.table.is_choice("pipeline_schedule", "zero-bubble") & (view.pipeline > 1) & able & ~fits
    return broken


def _zero_bubble_says(view: View) -> str:
    chunks = " or ".join(map(str, view.framework.zero_bubble_chunks))
    virtual = view.value("virtual_pipeline_size")
    return f"{view.framework.name}'s zero-bubble schedule needs virtual_pipeline_size {chunks}, not {virtual}"


PIPELINE: Final = (
    Rule("fewer_layers_than_chunks", _too_few_layers, _too_few_layers_says),
    Rule("layers_not_divisible", _layers, _layers_say),
    Rule("layers_not_divisible", _uneven, _uneven_says),
    Rule("virtual_needs_pipeline", _virtual, _virtual_says),
    Rule("micro_batches_not_multiple_of_stages", _too_few_micro_batches, _too_few_micro_batches_says),
    Rule("micro_batches_not_multiple_of_stages", _uneven_rounds, _uneven_rounds_say),
    Rule("schedule_unsupported", _schedule, _schedule_says),
    Rule("schedule_unsupported", _interleaved_without_virtual, _interleaved_without_virtual_says),
    Rule("schedule_unsupported", _one_chunk, _one_chunk_says),
    Rule("schedule_unsupported", _zero_bubble, _zero_bubble_says),
)
