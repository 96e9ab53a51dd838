"""From a stored search to a report: pure functions, no database and no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.report import charts, tables
from app.report.parts import Figure, Launch, Report, Section
from app.report.wording import amount, bare_gib, gib, seconds, share
from search.describe import describe

Answer = Mapping[str, Any]
NO_RESULT: Final = "The search ended without a result."


@dataclass(frozen=True)
class Ended:
    """A search that has ended, and what is worked out for its first plan."""

    id: str
    status: str
    created_at: str
    finished_at: str
    labels: Mapping[str, str]
    request: Answer
    confidence: float
    error: Answer | None = None
    result: Answer | None = None
    schedule: Section | None = None
    """Of the first plan."""
    launches: Sequence[Launch] = field(default=())


def report_of(search: Ended) -> Report:
    """The answer first, then what it rests on."""
    result = search.result
    plans = [] if result is None else result["plans"]
    plan = plans[0] if plans else None
    return Report(
        title=_title(search.request),
        subtitle=" · ".join(f"{name}: {value}" for name, value in sorted(search.labels.items())),
        facts=_facts(search),
        headline=_headline(search, plan),
        alarm=plan is None,
        figures=[] if plan is None else _figures(plan, search.confidence),
        reasons=_reasons(search, plan),
        warnings=[] if plan is None else [(one["code"], one["message"]) for one in plan["warnings"]],
        sections=[] if result is None else _sections(search, result, plan),
        launches=search.launches,
        closing=[] if result is None else _closing(result, plan),
        request=json.dumps(search.request, indent=2, ensure_ascii=False),
    )


def _title(request: Answer) -> str:
    model, cluster = request["model"], request["cluster"]
    named = model.get("preset") or (model.get("hf_config") or {}).get("model_type") or "a model"
    machine = cluster.get("preset") or cluster.get("name") or _gpu_name(cluster.get("gpu")) or "a cluster"
    nodes = request.get("nodes_options") or [cluster["nodes"]]
    return f"{named} on {' or '.join(map(str, nodes))} × {machine}"


def _gpu_name(gpu: str | Answer | None) -> str | None:
    return str(gpu["name"]) if isinstance(gpu, Mapping) else gpu


def _facts(search: Ended) -> list[tuple[str, str]]:
    workload, result = search.request["workload"], search.result
    facts = [
        ("Search", search.id),
        ("Status", search.status),
        ("Asked", search.created_at),
        ("Ended", search.finished_at),
        ("Sequence length", amount(workload.get("sequence_length"))),
        ("Global batch", f"{amount(workload['global_batch_size'])} sequences"),
        ("Training tokens", f"{workload['training_tokens']:.3g}" if workload.get("training_tokens") else "not given"),
    ]
    if result is not None:
        facts += [
            ("Strategies scored", f"{amount(result['evaluated'])} of {amount(result['space_size'])} combinations"),
            ("Trials of the study", amount(result["trials"])),
            ("Stopped by", result["stopped_by"]),
            ("Took", seconds(result["elapsed_seconds"])),
            ("Memory model", f"version {result['memory_model_version']}" if result["memory_model_version"] else "none"),
        ]
    return facts


def _headline(search: Ended, plan: Answer | None) -> str:
    if plan is not None:
        return describe(plan["strategy"])
    if search.error is not None:
        return f"{search.error.get('title', 'The search failed')}: {search.error.get('detail', '')}"
    if search.result is None:
        return f"{NO_RESULT} It was {search.status}."
    return _verdict(search.result)[0]


def _verdict(result: Answer) -> list[str]:
    """What it misses by; then each remedy (`search.verdict` joins them)."""
    missed, separator, remedies = str(result["verdict"]).partition(". ")
    return [f"{missed}.", *remedies.split("; ")] if separator else [missed]


def _reasons(search: Ended, plan: Answer | None) -> list[str]:
    if search.result is None:
        return [f"{'.'.join(map(str, one['loc']))}: {one['message']}" for one in (search.error or {}).get("errors", [])]
    if plan is None:
        return _verdict(search.result)[1:]
    said = list(plan["explanation"])
    # Alternatives and other clusters have tables of their own.
    return [
        *([search.result["verdict"]] if search.result["verdict"] else []),
        *(one for one in said if not one.startswith(("Alternative, ", "Changing numerics, ", "With "))),
    ]


def _figures(plan: Answer, confidence: float) -> list[Figure]:
    memory, found, cost = plan["memory"], plan["throughput"], plan["cost"]
    figures = [
        Figure("Step", seconds(plan["time"]["step_seconds"]), f"{amount(found['tokens_per_second'])} tokens a second"),
        Figure("MFU", share(found["mfu"]), f"{amount(found['model_tflops_per_gpu'])} TFLOP/s a GPU"),
        Figure(
            "Memory",
            f"{bare_gib(memory['peak_gib'])} of {gib(memory['capacity_gib'])}",
            f"must fit: up to {gib(memory['required_upper_gib'])} at {share(confidence)}; "
            f"runs out with {share(memory['oom_probability'])}",
        ),
    ]
    if cost["days"] is None:
        return [*figures, Figure("Days and cost", "–", "training_tokens were not given")]
    price = Figure("Cost", amount(cost["usd"], "USD"), "no price was given" if cost["usd"] is None else "of all GPUs")
    return [
        *figures,
        Figure("Days", amount(cost["days"]), f"{amount(cost['gpu_hours'])} GPU-hours"),
        price,
        Figure("Energy", amount(cost["energy_kwh"], "kWh"), "of the GPUs at rated power"),
    ]


def _sections(search: Ended, result: Answer, plan: Answer | None) -> list[Section]:
    sections = [_measured(result["measured"])] if result.get("measured") else []
    if plan is None:
        return sections
    return [
        *sections,
        Section(
            "memory",
            "Memory by part and stage",
            charts=[charts.memory_chart(plan)],
            tables=[tables.memory_table(plan), tables.limits_table(plan, search.confidence)],
        ),
        Section(
            "step",
            "Step time",
            charts=[charts.step_chart(plan)],
            tables=[tables.step_table(plan), tables.throughput_table(plan)],
        ),
        *([search.schedule] if search.schedule is not None else []),
    ]


def _around(plan: Answer) -> list[Section]:
    found = (
        ("alternatives", "Alternatives", plan.get("alternatives"), tables.alternatives_table),
        ("sensitivity", "If the cluster were another", plan.get("sensitivity"), tables.sensitivity_table),
    )
    return [Section(anchor, heading, tables=[table(rows)]) for anchor, heading, rows, table in found if rows]


def _others(result: Answer) -> list[Section]:
    sections = []
    if len(result["plans"]) > 1:
        sections.append(
            Section(
                "plans",
                "Ranked plans",
                [
                    f"Plan {plan['rank']}: {plan['explanation'][0]}"
                    for plan in result["plans"][1:]
                    if plan["explanation"]
                ],
                tables=[tables.plans_table(result["plans"], "All plans that were asked for, best first")],
            )
        )
    if result["tight"]:
        caption = "Would fit at confidence 0.5, not at the one asked for"
        sections.append(
            Section("tight", "Tight plans", tables=[tables.plans_table(result["tight"], caption, name="tight")])
        )
    if result["pareto"]:
        sections.append(
            Section(
                "pareto",
                "Step time against memory",
                charts=[charts.pareto_chart(result["pareto"], result["plans"])],
                tables=[tables.plans_table(result["pareto"], "The front", name="front")],
            )
        )
    return sections


def _current(current: Answer) -> Section:
    said = [f"{describe(current['strategy'])}."]
    if current["valid"]:
        fits = "fits" if current["fits"] else "does not fit"
        said.append(
            f"{seconds(current['time']['step_seconds'])} a step, up to {gib(current['memory']['required_upper_gib'])} "
            f"of {gib(current['memory']['capacity_gib'])}: it {fits}."
        )
    if current["gain"] is not None:
        said.append(f"The first plan gains {share(current['gain'])} over it.")
    said += [f"It breaks {one['code']}: {one['message']}." for one in current["violations"]]
    found = (tables.changes_table(current["changes"] or {}), tables.saved_table(current["saved_seconds"] or {}))
    return Section("current", "The strategy run today", said, tables=[one for one in found if one.rows])


def _measured(measured: Answer) -> Section:
    said = [
        f"{measured['told']} of {measured['asked']} runs told, of {measured['budget_trials']} that may be asked for."
    ]
    if measured["best"] is not None:
        best = measured["best"]
        said.append(
            f"Best so far: trial {best['trial']}, {describe(best['strategy'])}, "
            f"{seconds(best['measured_step_seconds'])} a step."
        )
    if measured["gain"] is not None:
        said.append(f"It saves {share(measured['gain'])} of what the first analytical plan takes.")
    return Section("measured", "Measured on the cluster", said, tables=[tables.measured_table(measured)])


def _closing(result: Answer, plan: Answer | None) -> list[Section]:
    sections = [] if plan is None else _around(plan)
    if result.get("current") is not None:
        sections.append(_current(result["current"]))
    if len(result.get("sizes", [])) > 1:
        sections.append(Section("sizes", "Cluster sizes", tables=[tables.sizes_table(result)]))
    sections += _others(result)
    if plan is not None:
        grounds = plan["provenance"]
        sections.append(
            Section(
                "provenance",
                "What the figures rest on",
                [f"Step time: {grounds['time']}. Memory: {grounds['memory']}.", *grounds["notes"]],
            )
        )
        collectives = [tables.collectives_table(plan["collectives"])] if plan.get("collectives") else []
        sections.append(
            Section("strategy", "The strategy", tables=[tables.strategy_table(plan["strategy"]), *collectives])
        )
    sections.append(Section("assumptions", "Assumptions", result["assumptions"]))
    if result["rejected"]:
        sections.append(Section("rejected", "What fell out", tables=[tables.rejected_table(result["rejected"])]))
    return sections
