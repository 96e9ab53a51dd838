"""The pipeline of a plan over time: its passes as a drawing, and what each stage does as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.report.drawing import WIDTH_PIXELS, draw
from app.report.parts import Chart, Section, Table
from app.report.wording import seconds, share, words
from search.pipeline_timeline import Pass, StageTimes, idle_seconds, makespan_seconds

MAX_BARS: Final = 900
"""Drawn in one picture; a longer step is shown at its beginning and at its end."""
KINDS: Final = ("forward", "backward", "weight_gradient")
SCHEDULES: Final = {
    "gpipe": "all forwards, then all backwards",
    "1f1b": "one forward, one backward in turn",
    "interleaved": "one forward, one backward in turn, over several chunks a stage",
    "zero-bubble": "weight gradients apart from the backward, where a stage would wait",
}


def schedule_section(
    plan: Mapping[str, Any], stages: Sequence[StageTimes], passes: Sequence[Pass], micro_batches: int
) -> Section:
    """`stages`: seconds of one micro-batch on each; `passes`: of the whole step."""
    said = _of_one_stage if len(stages) == 1 else _of_pipeline
    return Section(
        "schedule",
        "Pipeline timeline",
        said(plan, stages, passes, micro_batches),
        _charts(passes, len(stages)),
        [_table(stages, passes)],
    )


def _of_one_stage(
    _: Mapping[str, Any], __: Sequence[StageTimes], passes: Sequence[Pass], micro_batches: int
) -> list[str]:
    return [
        f"No pipeline: every GPU runs {micro_batches} micro-batches one after the other and adds their gradients up; "
        f"forward and backward take {seconds(makespan_seconds(passes))} together."
    ]


def _of_pipeline(
    plan: Mapping[str, Any], stages: Sequence[StageTimes], passes: Sequence[Pass], micro_batches: int
) -> list[str]:
    name, chunks = plan["strategy"]["pipeline_schedule"], plan["strategy"]["virtual_pipeline_size"]
    slowest, idle = _slowest(stages), idle_seconds(passes)
    held = f", {chunks} chunks each" if chunks > 1 else ""
    said = [
        f"{len(stages)} stages{held}, {micro_batches} micro-batches, schedule {name}: {SCHEDULES[name]}. "
        f"Stage {slowest} is the slowest: it waits {seconds(max(0.0, idle[slowest]))} of "
        f"{seconds(makespan_seconds(passes))}; the step time counts a bubble of "
        f"{seconds(plan['time']['breakdown_seconds']['pipeline_bubble'])}.",
        "Passing activations between stages and what follows the last backward (gradients, optimizer) are not drawn; "
        "the chunks of a stage are drawn equally long.",
    ]
    if name == "zero-bubble":
        said.append("Passes are placed greedily, which may wait longer than the schedule that the step time prices.")
    return said


def _slowest(stages: Sequence[StageTimes]) -> int:
    return max(range(len(stages)), key=lambda stage: stages[stage].whole)


def _charts(passes: Sequence[Pass], size: int) -> list[Chart]:
    if len(passes) <= MAX_BARS:
        return [_chart(passes, "The whole step.", size)]
    span = makespan_seconds(passes)
    window = span * MAX_BARS / 2 / len(passes)
    # Wide enough for the whole of warm-up on the last stage and drain on the first.
    first = [one for one in passes if one.start_seconds < window]
    last = [one for one in passes if one.end_seconds > span - window]
    return [
        _chart(first, f"The first {seconds(window)}: the pipeline fills, then the steady state begins.", size),
        _chart(last, f"The last {seconds(window)}: the steady state ends and the pipeline drains.", size),
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


def _table(stages: Sequence[StageTimes], passes: Sequence[Pass]) -> Table:
    span, idle = makespan_seconds(passes), idle_seconds(passes)
    rows = [
        (
            f"stage {stage}",
            seconds(times.forward),
            seconds(times.input_gradient + times.weight_gradient),
            seconds(min(one.start_seconds for one in passes if one.stage == stage)),
            seconds(max(0.0, idle[stage])),
            share(max(0.0, idle[stage]) / span),
        )
        for stage, times in enumerate(stages)
    ]
    return Table(
        "Each stage: one micro-batch, and its waiting in the whole step",
        ("stage", "forward", "backward", "begins after", "waits", "of the timeline"),
        rows,
        numeric=frozenset(range(1, 6)),
        marked=frozenset({_slowest(stages)}) if len(stages) > 1 else frozenset(),
    )
