"""The report as HTML, and the policy that it is served with: its own style and script by their hashes, nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.report.parts import Report

TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Page:
    """HTML and the Content-Security-Policy for its answer."""

    html: str
    policy: str


def render(report: Report) -> Page:
    """One file without a request to anywhere. Every text is escaped; the drawings are our own."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    html = (
        _environment()
        .get_template("report.html")
        .render(report=report, style=Markup(style), script=Markup(script), policy=policy)
    )
    # A page cannot say of itself who may frame it; the answer can.
    return Page(html, f"{policy}; frame-ancestors 'none'")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=2)
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a policy names an inline element (CSP 3, "hash-source")."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
