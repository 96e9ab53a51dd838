"""The search in a sentence; where nothing fits, by how much the closest misses and what would make it fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.units import GIB, SECONDS_PER_DAY
from search.candidates import Candidates
from search.describe import describe
from search.evaluator import Evaluator
from search.remedies import Remedy, hastenings, remedies
from search.swept import Sweep
from search.watch import Watch

MOST_HOSTS_COMPARED: Final = 64
"""Strategies that fit their GPUs, of which the one is named that misses its host by least."""


@dataclass(frozen=True)
class Findings:
    """What the verdict is about."""

    plans: Sequence[Mapping[str, Any]]
    evaluated: int
    rejected: Counter[str]
    too_large: Candidates
    """Valid, not fitting."""


def verdict(evaluator: Evaluator, swept: Sweep, findings: Findings, watch: Watch) -> str:
    """One paragraph for a person."""
    if findings.plans:
        return _found(swept, findings)
    if swept.stopped_by is not None:
        return (
            f"Nothing that fits was found among the {findings.evaluated:,} strategies scored before the search was "
            f"stopped ({swept.stopped_by}); the lattice holds more."
        )
    if len(swept.late):
        return _late(evaluator, swept.late, watch)
    if len(findings.too_large):
        return f"{_too_large(evaluator, findings.too_large)} {_ways_out(evaluator, watch)}"
    broken = ", ".join(f"{reason} ({count:,})" for reason, count in findings.rejected.most_common(3))
    why = f"rules broken most often: {broken}" if broken else "no combination multiplies to all GPUs and the batch"
    return f"No strategy of the space is valid: {why}. {_ways_out(evaluator, watch)}"


def _found(swept: Sweep, findings: Findings) -> str:
    best = findings.plans[0]
    memory, seconds = best["memory"], best["time"]["step_seconds"]
    lattice = swept.best_step_seconds
    gain = 0.0 if lattice is None else 1 - seconds / lattice
    refined = f" The study took {gain:.1%} off the best of the lattice." if gain >= 0.0005 else ""
    return (
        f"Run {describe(best['strategy'])} on {_nodes(best['nodes'])}: {seconds:.3g} s a step, "
        f"MFU {best['throughput']['mfu']:.0%}, up to {memory['required_upper_gib']:.1f} of "
        f"{memory['capacity_gib']:.1f} GiB.{refined}"
    )


def _too_large(evaluator: Evaluator, candidates: Candidates) -> str:
    search = evaluator.search
    on_device = np.flatnonzero(candidates.needed_bytes <= search.capacity_bytes)
    if len(on_device):
        return _short_of_host(evaluator, candidates.take(on_device[:MOST_HOSTS_COMPARED]))
    row = int(np.argmin(candidates.needed_bytes))
    upper, capacity = float(candidates.needed_bytes[row]), search.capacity_bytes
    return (
        f"No strategy fits at confidence {search.memory_confidence:g}: the closest "
        f"({describe(candidates.table.row(row))}) needs up to {upper / GIB:.1f} of {capacity / GIB:.1f} GiB of a GPU, "
        f"{(upper - capacity) / GIB:.1f} GiB too much."
    )


def _short_of_host(evaluator: Evaluator, candidates: Candidates) -> str:
    """Of strategies that fit their GPUs, the one that misses its host by least."""
    host = evaluator.search.clusters[0].host
    if host is None:
        return (
            "No strategy is known to fit: those that fit their GPUs offload to the host, and the cluster does not say "
            "what its host has (`host`)."
        )
    room = {"memory": (host.memory_bytes + host.cxl_bytes) / GIB, "NVMe": host.nvme_bytes / GIB}
    closest, misses = "", dict.fromkeys(room, math.inf)
    for row, cluster in enumerate(candidates.cluster.tolist()):
        table = candidates.table.take(slice(row, row + 1))
        memory = evaluator.answers(cluster, table)[0]["memory"]
        needs = {"memory": max(memory["host_gib_per_node"].values()), "NVMe": memory["nvme_gib_per_node"]}
        short = {name: need - room[name] for name, need in needs.items() if need > room[name]}
        if sum(short.values()) < sum(misses.values()):
            closest, misses = describe(table.row(0)), short
    words = " and ".join(
        f"{room[name] + short:.0f} of {room[name]:.0f} GiB of {name}, {short:.0f} GiB too much"
        for name, short in misses.items()
    )
    return f"No strategy fits: the closest ({closest}) fits its GPUs, but a node of it needs {words}."


def _late(evaluator: Evaluator, late: Candidates, watch: Watch) -> str:
    search = evaluator.search
    row = int(np.argmin(late.step_seconds))
    tokens, deadline = search.workload.training_tokens or 0.0, search.deadline_days or 0.0
    days = float(late.step_seconds[row]) * tokens / search.workload.tokens / SECONDS_PER_DAY
    missed = (
        f"No strategy that fits meets the deadline of {deadline:g} days: the fastest "
        f"({describe(late.table.row(row))}, {_nodes(search.clusters[int(late.cluster[row])].nodes)}) takes {days:.1f}."
    )
    return f"{missed} {_said('It would be met with', hastenings(search, days / deadline, watch), watch)}"


def _ways_out(evaluator: Evaluator, watch: Watch) -> str:
    return _said("It would fit with", remedies(evaluator.search, watch), watch)


def _said(head: str, found: Sequence[Remedy], watch: Watch) -> str:
    if found:
        return f"{head} {'; or with '.join(remedy.words for remedy in found)}."
    if watch.stopped_by() is not None:
        return "No time was left to try what would help."
    return "None of the changes that were tried helps."


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
