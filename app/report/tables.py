"""The tables of a report: every figure that a drawing shows, and what else a plan carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.report.parts import Table
from app.report.wording import amount, bare_gib, change, gib, plain, seconds, share, words, yes_no
from search.describe import describe

Answer = Mapping[str, Any]


def memory_table(plan: Answer) -> Table:
    """Parts of the peak of each stage."""
    memory = plan["memory"]
    stages = memory["stages"]
    names = [name for name in memory["breakdown_gib"] if any(stage["breakdown_gib"][name] for stage in stages)]
    rows = [
        [
            f"stage {stage['stage']}",
            str(stage["layers"]),
            bare_gib(stage["peak_gib"]),
            *(bare_gib(stage["breakdown_gib"][name]) for name in names),
            bare_gib(stage["peak_allocated_gib"]),
            bare_gib(stage["peak_reserved_gib"]),
        ]
        for stage in stages
    ]
    columns = ["stage", "layers", "peak", *map(words, names), "torch allocated", "torch reserved"]
    fullest = max(range(len(stages)), key=lambda index: stages[index]["peak_gib"])
    return Table(
        "Peak memory of one GPU by stage and part, GiB: the parts add up to the peak",
        columns,
        rows,
        numeric=frozenset(range(1, len(columns))),
        marked=frozenset({fullest}) if len(stages) > 1 else frozenset(),
    )


def limits_table(plan: Answer, confidence: float) -> Table:
    """What must fit, and where else memory is needed."""
    memory = plan["memory"]
    host = memory["host_gib_per_node"]
    rows = [
        ("must fit", gib(memory["required_gib"])),
        (f"its bound at {share(confidence)}", gib(memory["required_upper_gib"])),
        ("capacity", gib(memory["capacity_gib"])),
        ("probability of running out", share(memory["oom_probability"])),
        ("moment of the peak", memory["peak_moment"]),
        ("by formulas alone", gib(memory["analytical_gib"])),
        ("while model and optimizer are set up", gib(memory["device_load_peak_gib"])),
        ("host memory of a node, steady", gib(host["steady"])),
        ("host memory of a node, while loading", gib(host["load_peak"])),
        ("host memory of a node, while saving", gib(host["checkpoint_peak"])),
        ("NVMe of a node", gib(memory["nvme_gib_per_node"])),
    ]
    return Table("What must fit", ("figure", "value"), rows, numeric=frozenset({1}))


def step_table(plan: Answer) -> Table:
    """Parts of the step."""
    total = plan["time"]["step_seconds"]
    parts = sorted(plan["time"]["breakdown_seconds"].items(), key=lambda pair: -pair[1])
    rows = [(words(name), seconds(value), share(value / total)) for name, value in parts]
    return Table(
        "Parts of a step",
        ("part", "time", "of the step"),
        [*rows, ("step", seconds(total), share(1.0))],
        numeric=frozenset({1, 2}),
        marked=frozenset({len(rows)}),
    )


def throughput_table(plan: Answer) -> Table:
    """What the step time means."""
    found = plan["throughput"]
    rows = [
        ("tokens a second", amount(found["tokens_per_second"])),
        ("tokens a second and GPU", amount(found["tokens_per_second_per_gpu"])),
        ("samples a second", amount(found["samples_per_second"])),
        ("model TFLOP/s of a GPU", amount(found["model_tflops_per_gpu"])),
        ("MFU", share(found["mfu"])),
        ("HFU, with recomputation", share(found["hfu"])),
    ]
    return Table("Throughput", ("figure", "value"), rows, numeric=frozenset({1}))


def strategy_table(strategy: Answer) -> Table:
    """Every field."""
    return Table(
        "The strategy, field by field", ("field", "value"), [(name, plain(value)) for name, value in strategy.items()]
    )


def plans_table(plans: Sequence[Answer], caption: str, *, name: str = "plan") -> Table:
    """Ranked plans, one a row."""
    rows = [
        (
            f"{name} {plan['rank']}",
            describe(plan["strategy"]),
            amount(plan["nodes"]),
            seconds(plan["time"]["step_seconds"]),
            share(plan["throughput"]["mfu"]),
            gib(plan["memory"]["peak_gib"]),
            gib(plan["memory"]["required_upper_gib"]),
            share(plan["memory"]["oom_probability"]),
            plan["provenance"]["time"],
        )
        for plan in plans
    ]
    columns = ("rank", "strategy", "nodes", "step", "MFU", "peak", "bound", "runs out", "time is")
    return Table(caption, columns, rows, numeric=frozenset(range(2, 8)))


def alternatives_table(alternatives: Sequence[Answer]) -> Table:
    """One step away in each direction."""
    rows = [
        (
            one["change"],
            seconds(one["step_seconds"]),
            change(one["relative"]),
            gib(one["required_upper_gib"]),
            yes_no(one["fits"]) if one["valid"] else f"breaks {', '.join(one['violations'])}",
            yes_no(one["in_space"]),
            yes_no(one["changes_numerics"]),
        )
        for one in alternatives
    ]
    columns = ("change", "step", "over the plan", "bound of memory", "fits", "in the space", "changes numerics")
    return Table("One step away from the plan", columns, rows, numeric=frozenset({1, 2, 3}))


def sensitivity_table(changes: Sequence[Answer]) -> Table:
    """Another cluster or load."""
    rows = [
        (
            one["change"],
            "does not fit" if one["step_seconds"] is None else seconds(one["step_seconds"]),
            change(one["relative"]),
            yes_no(one["stays_first"]),
            "nothing at hand fits"
            if one["best"] is None
            else f"{describe(one['best']['strategy'])}: {seconds(one['best']['step_seconds'])}",
        )
        for one in changes
    ]
    columns = ("change", "step of the plan", "over today", "stays first", "best then")
    return Table("The plan, and what would be best, under each change", columns, rows, numeric=frozenset({1, 2}))


def collectives_table(collectives: Sequence[Answer]) -> Table:
    """How gradients are reduced."""
    rows = [
        (
            one["collective"],
            one["algorithm"],
            one["protocol"],
            amount(one["ranks"]),
            amount(one["nodes"]),
            amount(one["message_bytes"] / 1e6, "MB"),
        )
        for one in collectives
    ]
    columns = ("collective", "algorithm", "protocol", "ranks", "nodes", "message")
    return Table("How gradients are reduced, level by level", columns, rows, numeric=frozenset({3, 4, 5}))


def changes_table(changes: Answer) -> Table:
    """Fields in which the first plan differs from the strategy run today."""
    rows = [(name, plain(one["from"]), plain(one["to"])) for name, one in changes.items()]
    return Table("What to change", ("field", "today", "the plan"), rows)


def saved_table(saved_seconds: Mapping[str, float]) -> Table:
    """What it saves of each part of the step."""
    rows = [(words(name), seconds(value)) for name, value in saved_seconds.items() if value]
    return Table("What the plan saves of a step", ("part", "saved"), rows, numeric=frozenset({1}))


def sizes_table(result: Answer) -> Table:
    """Every cluster size that was asked for."""
    titles = ("smallest", "fastest", "cheapest")
    rows = [
        (
            f"{amount(size['nodes'])} node{'s' if size['nodes'] > 1 else ''}",
            amount(size["gpus"]),
            yes_no(size["fits"]),
            yes_no(size["meets_deadline"]),
            seconds(size["step_seconds"]),
            amount(size["days"]),
            amount(size["gpu_hours"]),
            amount(size["usd"]),
            amount(size["energy_kwh"]),
            ", ".join(title for title in titles if result[title] == size["nodes"]) or plain(None),
            " ".join(size["notes"]) or plain(None),
        )
        for size in result["sizes"]
    ]
    columns = ("size", "GPUs", "fits", "in time", "step", "days", "GPU-hours", "USD", "kWh", "is the", "notes")
    return Table("What each size would take", columns, rows, numeric=frozenset({1, 4, 5, 6, 7, 8}))


def measured_table(measured: Answer) -> Table:
    """Trials of a measured search."""
    rows = [
        (
            f"trial {one['trial']}",
            describe(one["strategy"]),
            one["state"],
            seconds(one["estimated_step_seconds"]),
            seconds(one["measured_step_seconds"]),
            amount(one["ratio"]),
            gib(one["estimated_peak_gib"]),
            gib(one["peak_gib"]),
        )
        for one in measured["trials"]
    ]
    columns = ("trial", "strategy", "state", "estimated", "measured", "ratio", "peak estimated", "peak measured")
    return Table("Runs on the cluster", columns, rows, numeric=frozenset(range(3, 8)))


def rejected_table(rejected: Mapping[str, int]) -> Table:
    """Why strategies fell out."""
    rows = [(words(code), amount(count)) for code, count in sorted(rejected.items(), key=lambda pair: -pair[1])]
    return Table("Strategies that broke a rule", ("rule", "strategies"), rows, numeric=frozenset({1}))
