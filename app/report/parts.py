"""What a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    """Columns of figures, which are set flush right."""
    marked: frozenset[int] = frozenset()
    """Rows that stand out: the first plan, the slowest stage."""


@dataclass(frozen=True)
class Chart:
    """A drawing whose figures a table of the same section holds."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    anchor: str
    heading: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class LaunchFileText:
    """One file of a target."""

    path: str
    content: str


@dataclass(frozen=True)
class Launch:
    """How one target starts the plan; `refusals` where it cannot."""

    target: str
    command: str = ""
    files: Sequence[LaunchFileText] = ()
    environment: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    refusals: Sequence[tuple[str, str]] = ()
    """Field and why the target has no setting for it."""


@dataclass(frozen=True)
class Figure:
    """One of the headline figures."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    """About the search itself."""
    headline: str
    alarm: bool
    """The headline is no plan: a failure, or that nothing fits."""
    figures: Sequence[Figure]
    reasons: Sequence[str]
    warnings: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    launches: Sequence[Launch]
    closing: Sequence[Section]
    """After the launch commands: other plans, and what the figures rest on."""
    request: str
    """As it was sent, JSON."""
