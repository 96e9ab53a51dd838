"""The drawings of a report, as Vega-Lite specifications over the figures of an Estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.report.drawing import INK, WIDTH_PIXELS, colours, draw
from app.report.parts import Chart
from app.report.wording import gib, seconds, share, words
from search.describe import describe

Answer = Mapping[str, Any]

WIDE: Final = 8.0
"""Times over more than such a factor are drawn on a logarithmic axis."""
SEGMENT: Final = {"stroke": "var(--paper)", "strokeWidth": 1}
"""Neighbours in a stack are told apart by more than their colour."""


def memory_chart(plan: Answer) -> Chart:
    """Stacked parts of each stage's peak, with the capacity and the bound that must stay below it."""
    memory = plan["memory"]
    names = [
        name for name in memory["breakdown_gib"] if any(stage["breakdown_gib"][name] for stage in memory["stages"])
    ]
    bars = [
        {
            "stage": f"stage {stage['stage']}",
            "part": words(name),
            "gib": stage["breakdown_gib"][name],
            "order": number,
            "told": f"stage {stage['stage']}, {words(name)}: {gib(stage['breakdown_gib'][name])}",
        }
        for stage in memory["stages"]
        for number, name in enumerate(names)
    ]
    limits = [
        {"limit": "bound", "gib": memory["required_upper_gib"], "told": f"bound: {gib(memory['required_upper_gib'])}"},
        {"limit": "capacity", "gib": memory["capacity_gib"], "told": f"capacity: {gib(memory['capacity_gib'])}"},
    ]
    drawn = draw(
        {
            "width": WIDTH_PIXELS,
            "height": {"step": 26 if len(memory["stages"]) > 1 else 44},
            "layer": [
                {
                    "data": {"values": bars},
                    "mark": {"type": "bar", **SEGMENT},
                    "encoding": {
                        "x": {"field": "gib", "type": "quantitative", "title": "GiB of one GPU"},
                        "y": {"field": "stage", "type": "nominal", "sort": None, "title": None},
                        "color": {
                            "field": "part",
                            "type": "nominal",
                            "scale": colours([words(name) for name in names]),
                        },
                        "order": {"field": "order"},
                        "description": {"field": "told"},
                    },
                },
                {
                    "data": {"values": limits},
                    "mark": {"type": "rule", "color": INK, "strokeWidth": 2},
                    "encoding": {
                        "x": {"field": "gib", "type": "quantitative"},
                        "strokeDash": {
                            "field": "limit",
                            "type": "nominal",
                            "scale": {"domain": ["bound", "capacity"], "range": [[4, 4], [1, 0]]},
                            "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolStrokeColor": INK},
                        },
                        "description": {"field": "told"},
                    },
                },
            ],
            "resolve": {"legend": {"strokeDash": "independent"}},
        },
        f"Memory of each pipeline stage by part; the fullest peaks at {gib(memory['peak_gib'])} "
        f"of {gib(memory['capacity_gib'])}",
    )
    return Chart(
        drawn,
        "Peak of the fullest GPU of each stage, as the device shows it. Solid line: capacity; dashed: the bound of "
        "what must fit.",
    )


def step_chart(plan: Answer) -> Chart:
    """The parts of a step, longest first."""
    time = plan["time"]
    parts = sorted(
        ((name, value) for name, value in time["breakdown_seconds"].items() if value > 0), key=lambda pair: -pair[1]
    )
    total = time["step_seconds"]
    values = [
        {
            "part": words(name),
            "seconds": value,
            "told": f"{words(name)}: {seconds(value)}, {share(value / total)}",
            "text": f"{seconds(value)} ({share(value / total)})",
        }
        for name, value in parts
    ]
    drawn = draw(
        {
            "width": WIDTH_PIXELS - 120,
            "height": {"step": 26},
            "data": {"values": values},
            "encoding": {
                "x": {
                    "field": "seconds",
                    "type": "quantitative",
                    "title": "seconds of a step",
                    "scale": {"domainMax": parts[0][1] * 1.15},
                },
                "y": {"field": "part", "type": "nominal", "sort": None, "title": None},
                "description": {"field": "told"},
            },
            "layer": [
                {"mark": {"type": "bar", "color": "var(--c0)"}},
                {
                    "mark": {"type": "text", "align": "left", "dx": 5, "color": INK},
                    "encoding": {"text": {"field": "text"}},
                },
            ],
        },
        f"Step time by part; the longest is {words(parts[0][0])} with {seconds(parts[0][1])} of {seconds(total)}",
    )
    return Chart(drawn, "Exposed time on the slowest stage; the parts add up to the step.")


def pareto_chart(front: Sequence[Answer], plans: Sequence[Answer]) -> Chart:
    """Step time against peak memory: the front, and the ranked plans."""
    # Ranked plans first: those of the front lie on top of them and leave a rim to be seen.
    points = [_point(plan, "ranked plan") for plan in plans] + [_point(plan, "front") for plan in front]
    times = [point["seconds"] for point in points]
    wide = max(times) > WIDE * min(times)
    drawn = draw(
        {
            "width": WIDTH_PIXELS,
            "height": 320,
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                "x": {
                    "field": "gib",
                    "type": "quantitative",
                    "title": "peak memory of the fullest GPU, GiB",
                    "scale": {"zero": False, "nice": True},
                },
                "y": {
                    "field": "seconds",
                    "type": "quantitative",
                    "title": "seconds a step, logarithmic" if wide else "seconds a step",
                    "scale": {"type": "log", "nice": True} if wide else {"zero": False, "nice": True},
                },
                "color": {"field": "set", "type": "nominal", "scale": colours(["front", "ranked plan"])},
                "shape": {
                    "field": "set",
                    "type": "nominal",
                    "scale": {"domain": ["front", "ranked plan"], "range": ["circle", "diamond"]},
                },
                "size": {
                    "field": "set",
                    "type": "nominal",
                    "scale": {"domain": ["front", "ranked plan"], "range": [60, 240]},
                },
                "description": {"field": "told"},
            },
        },
        f"Step time against peak memory: {len(front)} plans of the front and {len(plans)} ranked ones",
    )
    return Chart(drawn, "No plan is both faster and smaller than one of the front. Point at a plan to see which it is.")


def _point(plan: Answer, kind: str) -> dict[str, Any]:
    peak, step = plan["memory"]["peak_gib"], plan["time"]["step_seconds"]
    return {
        "set": kind,
        "gib": peak,
        "seconds": step,
        "told": f"{kind} {plan['rank']}: {describe(plan['strategy'])}; {seconds(step)}, {gib(peak)}",
    }
