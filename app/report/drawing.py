"""Vega-Lite specifications to inline SVG that follows the page's colours and tells its figures on hover.

The library draws on the server: the page needs no script for its charts, prints them, and stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

import vl_convert
from markupsafe import Markup

VEGA_LITE: Final = "6.4"
SVG: Final = "http://www.w3.org/2000/svg"
INK: Final = "currentColor"
WIDTH_PIXELS: Final = 820
PALETTE_SIZE: Final = 11
"""Custom properties --c0 to --c10 of report.css, which have other values in dark mode."""
CONFIG: Final[Mapping[str, Any]] = {
    "background": None,
    # Browsers may have wider letters than the ones that the drawing was measured with.
    "padding": {"left": 28, "right": 24, "top": 4, "bottom": 4},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "gridColor": "var(--grid)",
        "labelLimit": 260,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "orient": "bottom",
        "title": None,
        "symbolStrokeWidth": 0,
        "symbolType": "square",
        "columns": 5,
        "columnPadding": 34,
        "labelLimit": 200,
    },
    "title": {"color": INK, "fontWeight": "normal", "anchor": "start", "fontSize": 13},
}

# Written without a prefix, as HTML wants it.
ElementTree.register_namespace("", SVG)


def colours(names: Sequence[str]) -> dict[str, Any]:
    """A scale that gives each name a colour of the page."""
    return {"domain": list(names), "range": [f"var(--c{index % PALETTE_SIZE})" for index in range(len(names))]}


def draw(specification: Mapping[str, Any], label: str) -> Markup:
    """The drawing as an `svg` element named `label`. What a mark's `description` says is told on hover."""
    written = vl_convert.vegalite_to_svg({**specification, "config": CONFIG}, vl_version=VEGA_LITE)
    root = ElementTree.fromstring(written)
    for element in root.iter():
        told = element.attrib.pop("aria-label", None)
        if told and element.get("aria-roledescription") in ("bar", "point", "rule"):
            ElementTree.SubElement(element, f"{{{SVG}}}title").text = told
        # One image with a name; its parts are in the tables, in a better order than the drawing's.
        for name in ("role", "aria-roledescription", "aria-hidden", "style"):
            element.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return Markup(ElementTree.tostring(root, encoding="unicode"))
