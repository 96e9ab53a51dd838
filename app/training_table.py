"""A training's report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

BOUND_AT: Final = "0.95"
_TITLES: Final = {
    "own_run": "Peak memory, next runs of own clusters",
    "model_shape": "Peak memory, unseen model shapes",
    "source": "Peak memory, unseen sources",
}


def show_training(report: Mapping[str, Any], console: Console) -> None:
    """Print what was learned from, the errors on what had not been seen, and what own runs bring."""
    skipped = report["skipped"]
    console.print(
        f"{report['runs']:,} runs: {report['memory_rows']:,} peaks, {report['out_of_memory']:,} out of memory, "
        f"{report['step_times']:,} step times; {skipped['records']:,} left out."
    )
    for reason, count in skipped["reasons"].items():
        console.print(f"  {count:,} {escape(reason)}", style="dim")
    for grouping, title in _TITLES.items():
        if report["candidate"][grouping] is not None:
            serving = (report["serving"] or {}).get(grouping)
            console.print(_unseen(title, report["candidate"][grouping], serving))
    if report["learning_curve"]:
        console.print(_learning_curve(report["learning_curve"]))
    if report["step_time"]["by_family"]:
        console.print(_step_times(report["step_time"]))
    console.print(f"{report['seconds']:.1f} s.", style="dim")


def _unseen(title: str, found: Mapping[str, Any], serving: Mapping[str, Any] | None) -> Table:
    table = _table(title, "group", "rows", "median error", "formulas", "serving", "above bound", "overshoot")
    before = {} if serving is None else serving["by_group"]
    table.add_row(
        f"all {found['groups']}",
        f"{found['rows']:,}",
        _percent(found["median_error"]),
        _percent(found["analytical_median_error"]),
        "" if serving is None else _percent(serving["median_error"]),
        _percent(found["under_rate"][BOUND_AT]),
        _percent(found["overshoot"]),
    )
    for name, group in found["by_group"].items():
        table.add_row(
            escape(name),
            f"{group['rows']:,}",
            _percent(group["median_error"]),
            _percent(group["analytical_median_error"]),
            _percent(before[name]["median_error"]) if name in before else "",
            _percent(group["under_rate"]),
            _percent(group["overshoot"]),
        )
    return table


def _learning_curve(lines: list[Mapping[str, Any]]) -> Table:
    table = _table("Peak memory with own runs", "source", "own runs", "median error", "formulas", "above bound")
    for line in lines:
        table.add_row(
            escape(line["family"]),
            f"{line['own_runs']}",
            _percent(line["median_error"]),
            _percent(line["analytical_median_error"]),
            _percent(line["under_rate"]),
        )
    return table


def _step_times(found: Mapping[str, Any]) -> Table:
    own = found["own_runs"]
    table = _table("Step time, unseen sources", "source", "rows", "median error", f"with {own} own runs")
    for name, family in found["by_family"].items():
        table.add_row(
            escape(name),
            f"{family['rows']:,}",
            _percent(family["median_error"]),
            _percent(family["median_error_with_own_runs"]),
        )
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
