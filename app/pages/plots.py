"""Plots of what was learned, drawn on the server as SVG in the page's colours: no script is needed to see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from app.report.drawing import draw

DASHES: Final = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [10, 4], [1, 3], [6, 2, 2, 2])
"""One a line: told apart without colours."""


def reliability_plot(found: Mapping[str, Any]) -> Markup:
    """How often peaks lay above the bound beside how often they should: on the diagonal the bound means what it says.

    `found`: the figures of one grouping in a training's report.
    """
    scale = {"domain": [0, 1]}
    axis = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}
    x = {"field": "probability", "type": "quantitative", "scale": scale, "axis": axis, "title": "probability stated"}
    y = {"field": "observed", "type": "quantitative", "scale": scale, "axis": axis, "title": "share observed"}
    ideal = [{"probability": 0, "observed": 0}, {"probability": 1, "observed": 1}]
    layers = [
        {"data": {"values": ideal}, "mark": {"type": "line", "color": "var(--ideal)", "strokeDash": [4, 4]}},
        {
            "data": {"values": list(found["reliability"])},
            "mark": {"type": "line", "color": "var(--measured)", "point": {"color": "var(--measured)", "size": 60}},
        },
    ]
    shared = {"width": 340, "height": 300, "encoding": {"x": x, "y": y}, "layer": layers}
    return draw(shared, "Reliability: share of peaks above the bound, by the probability that the bound states")


def learning_curve_plot(lines: Sequence[Mapping[str, Any]]) -> Markup:
    """Median error on a new cluster by how many runs it has logged: one line a family of sources."""
    values = [{"family": row["family"], "runs": str(row["own_runs"]), "error": row["median_error"]} for row in lines]
    order = [str(count) for count in sorted({row["own_runs"] for row in lines})]
    families = list(dict.fromkeys(row["family"] for row in lines))
    dash = {"domain": families, "range": list(DASHES[: len(families)])}
    legend = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolStrokeColor": "var(--measured)", "symbolSize": 900}
    encoding = {
        "x": {"field": "runs", "type": "ordinal", "sort": order, "title": "own runs logged", "axis": {"labelAngle": 0}},
        "y": {
            "field": "error",
            "type": "quantitative",
            "title": "median error of peak memory",
            "axis": {"format": "%"},
        },
        "strokeDash": {"field": "family", "type": "nominal", "scale": dash, "legend": legend},
    }
    mark = {"type": "line", "color": "var(--measured)", "point": {"color": "var(--measured)"}, "strokeWidth": 2}
    data = {"values": values}
    return draw(
        {"width": 480, "height": 300, "data": data, "mark": mark, "encoding": encoding},
        "Learning curve: median error of peak memory by the number of own runs logged, one line a family",
    )
