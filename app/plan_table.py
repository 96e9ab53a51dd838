"""Ranked plans as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_DEGREES = (
    ("TP", "tensor_parallel_size"),
    ("CP", "context_parallel_size"),
    ("PP", "pipeline_parallel_size"),
    ("VPP", "virtual_pipeline_size"),
    ("EP", "expert_parallel_size"),
    ("DP", "data_parallel_size"),
    ("ZeRO", "zero_stage"),
    ("mbs", "micro_batch_size"),
)


def show_result(result: Mapping[str, Any], console: Console) -> None:
    """Print the plans of a search, why each stands where it does, and what the search did."""
    plans = result["plans"]
    if plans:
        console.print(_table(plans))
        _show_explanations(plans, console)
    if result["verdict"]:
        console.print(escape(result["verdict"]))
    console.print(
        f"{result['evaluated']:,} strategies scored of {result['space_size']:,} combinations, "
        f"{result['trials']} trials, {result['elapsed_seconds']:.2f} s.\n",
        style="dim",
    )


def _table(plans: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right")
    table.add_column("framework", no_wrap=True)
    for heading, _ in _DEGREES:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("recompute", no_wrap=True)
    offloads = any(plan["strategy"]["offload"] != "none" for plan in plans)
    if offloads:
        table.add_column("offload", no_wrap=True)
    for heading in ("s/step", "MFU", "peak GiB", "of"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan in plans:
        table.add_row(*_cells(plan, with_offload=offloads), style="bold" if plan["rank"] == 1 else None)
    return table


def _cells(plan: Mapping[str, Any], *, with_offload: bool) -> list[str]:
    strategy, memory = plan["strategy"], plan["memory"]
    return [
        str(plan["rank"]),
        strategy["framework"],
        *(str(strategy[name]) for _, name in _DEGREES),
        strategy["activation_checkpointing"],
        *([strategy["offload"]] if with_offload else []),
        f"{plan['time']['step_seconds']:.2f}",
        f"{plan['throughput']['mfu']:.1%}",
        f"{memory['peak_gib']:.1f}",
        f"{memory['capacity_gib']:.1f}",
    ]


def _show_explanations(plans: Sequence[Mapping[str, Any]], console: Console) -> None:
    best, *others = plans
    console.print("[bold]Why plan 1[/]")
    for sentence in best["explanation"]:
        console.print(f"  {escape(sentence)}")
    if others:
        console.print("[bold]The others[/]")
    for plan in others:
        if plan["explanation"]:
            console.print(f"  {plan['rank']:>2}  {escape(plan['explanation'][0])}")
    console.print()
