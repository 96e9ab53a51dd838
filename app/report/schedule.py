"""The pipeline of a plan over time: its passes as a drawing, and what each stage does as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.report.drawing import WIDTH_PIXELS, draw
from app.report.parts import Chart, Section, Table
from app.report.wording import seconds, share, words
from search.pipeline_timeline import Pass, StageTimes, Timeline

MAX_BARS: Final = 900
"""Drawn in one picture; a longer step is shown at its beginning and at its end."""
KINDS: Final = ("forward", "backward", "weight_gradient")
SCHEDULES: Final = {
    "gpipe": "all forwards, then all backwards",
    "1f1b": "one forward, one backward in turn",
    "interleaved": "one forward, one backward in turn, over several chunks a stage",
    "zero-bubble": "weight gradients apart from the backward, where a stage would wait",
}


def schedule_section(plan: Mapping[str, Any], step: Timeline) -> Section:
    """`step`: the plan's, played out."""
    said = _of_one_stage(step) if len(step.stages) == 1 else _of_pipeline(plan, step)
    if step.left_out:
        said.append(f"{step.left_out:,} micro-batches of the steady state are left out of the drawings.")
    return Section("schedule", "Pipeline timeline", said, _charts(step), [_table(step)])


def _of_one_stage(step: Timeline) -> list[str]:
    return [
        f"No pipeline: every GPU runs {step.micro_batches:,} micro-batches one after the other and adds their "
        f"gradients up; forward and backward take {seconds(step.makespan_seconds)} together."
    ]


def _of_pipeline(plan: Mapping[str, Any], step: Timeline) -> list[str]:
    name, chunks = plan["strategy"]["pipeline_schedule"], plan["strategy"]["virtual_pipeline_size"]
    slowest = _slowest(step.stages)
    held = f", {chunks} chunks each" if chunks > 1 else ""
    said = [
        f"{len(step.stages)} stages{held}, {step.micro_batches:,} micro-batches, schedule {name}: {SCHEDULES[name]}. "
        f"Stage {slowest} is the slowest: it waits {seconds(max(0.0, step.idle_seconds[slowest]))} of "
        f"{seconds(step.makespan_seconds)}; the step time counts a bubble of "
        f"{seconds(plan['time']['breakdown_seconds']['pipeline_bubble'])}.",
        "Passing activations between stages and what follows the last backward (gradients, optimizer) are not drawn; "
        "the chunks of a stage are drawn equally long.",
    ]
    if name == "zero-bubble":
        said.append("Passes are placed greedily, which may wait longer than the schedule that the step time prices.")
    return said


def _slowest(stages: Sequence[StageTimes]) -> int:
    return max(range(len(stages)), key=lambda stage: stages[stage].whole)


def _charts(step: Timeline) -> list[Chart]:
    passes, size = step.passes, len(step.stages)
    if len(passes) <= MAX_BARS and not step.left_out:
        return [_chart(passes, "The whole step.", size)]
    shown = min(MAX_BARS, len(passes)) // 2
    first = passes[:shown]
    last = sorted(passes, key=lambda one: one.end_seconds)[-shown:]
    begun = max(one.end_seconds for one in first)
    left = step.makespan_seconds - min(one.start_seconds for one in last)
    filled = ("the pipeline fills, then the steady state begins", "the steady state ends and the pipeline drains")
    words_of = ("micro-batch after micro-batch",) * 2 if size == 1 else filled
    return [
        _chart(first, f"The first {seconds(begun)}: {words_of[0]}.", size),
        _chart(last, f"The last {seconds(left)}: {words_of[1]}.", size),
    ]


def _chart(passes: Sequence[Pass], caption: str, size: int) -> Chart:
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in passes)]
    chunks = max(one.chunk for one in passes) // size + 1
    values = [
        {
            "stage": f"stage {one.stage}",
            "begin": one.start_seconds,
            "end": one.end_seconds,
            "kind": words(one.kind),
            "chunk": 1.0 - 0.55 * (one.chunk // size) / max(1, chunks),
            "told": f"stage {one.stage}, {words(one.kind)} of micro-batch {one.micro_batch}"
            + (f", chunk {one.chunk}" if chunks > 1 else "")
            + f": {seconds(one.start_seconds)} to {seconds(one.end_seconds)}",
        }
        for one in passes
    ]
    shades = ["var(--c0)", "var(--c1)", "var(--c2)"]
    drawn = draw(
        {
            "width": WIDTH_PIXELS,
            "height": {"step": 24 if size > 1 else 44},
            "data": {"values": values},
            "mark": {"type": "bar", "stroke": "var(--paper)", "strokeWidth": 0.5},
            "encoding": {
                "x": {
                    "field": "begin",
                    "type": "quantitative",
                    "title": "seconds",
                    "scale": {"zero": False, "nice": False},
                },
                "x2": {"field": "end"},
                "y": {
                    "field": "stage",
                    "type": "nominal",
                    "sort": [f"stage {stage}" for stage in range(size)],
                    "title": None,
                },
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {
                        "domain": [words(kind) for kind in kinds],
                        "range": [shades[KINDS.index(kind)] for kind in kinds],
                    },
                },
                "opacity": {"field": "chunk", "type": "quantitative", "scale": None, "legend": None},
                "description": {"field": "told"},
            },
        },
        f"Pipeline timeline of {size} stages. {caption}",
    )
    return Chart(drawn, caption + (" Fainter: later chunks of a stage." if chunks > 1 else ""))


def _table(step: Timeline) -> Table:
    rows = [
        (
            f"stage {stage}",
            seconds(times.forward),
            seconds(times.input_gradient + times.weight_gradient),
            seconds(min(one.start_seconds for one in step.passes if one.stage == stage)),
            seconds(max(0.0, idle)),
            share(max(0.0, idle) / step.makespan_seconds),
        )
        for stage, (times, idle) in enumerate(zip(step.stages, step.idle_seconds, strict=True))
    ]
    return Table(
        "Each stage: one micro-batch, and its waiting in the whole step",
        ("stage", "forward", "backward", "begins after", "waits", "of the timeline"),
        rows,
        numeric=frozenset(range(1, 6)),
        marked=frozenset({_slowest(step.stages)}) if len(step.stages) > 1 else frozenset(),
    )
