"""Why a plan wins, what binds it and what its nearest alternatives would cost: sentences with figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cost_models.cluster import Cluster
from search.alternatives import price_alternatives
from search.evaluator import Evaluator

COMPUTE: Final = ("forward", "backward", "recompute", "optimizer")
MEMORY_BINDS: Final = 0.9
"""Of the capacity: above, there is no room for the next step in any direction."""
OBJECTIVE_WORDS: Final = {
    "step_time": "Fastest",
    "cost": "Cheapest",
    "energy": "Least energy",
    "pareto": "On the front of step time against peak memory",
}

Answer = Mapping[str, Any]


def describe(strategy: Mapping[str, Any]) -> str:
    """A strategy in one line, sizes of 1 left out."""
    words = [str(strategy["framework"])]
    for name, short in (
        ("tensor_parallel_size", "TP"),
        ("context_parallel_size", "CP"),
        ("pipeline_parallel_size", "PP"),
        ("virtual_pipeline_size", "VPP"),
        ("expert_parallel_size", "EP"),
        ("data_parallel_size", "DP"),
        ("data_parallel_replicate_size", "replicas of the shards "),
    ):
        if strategy[name] > 1:
            words.append(f"{short}{strategy[name]}")
    words.append(f"ZeRO-{strategy['zero_stage']}")
    details = [f"micro-batch {strategy['micro_batch_size']}"]
    mode = strategy["activation_checkpointing"]
    details.append("no checkpointing" if mode == "none" else f"{mode} checkpointing")
    if mode == "full":
        details[-1] += f" of {strategy['checkpointed_layers']} layers a stage"
    if strategy["offload"] != "none":
        details.append(f"offload of {strategy['offload']} ({strategy['offload_fraction']:.0%})")
    return f"{' '.join(words)}, {', '.join(details)}"


def explain(evaluator: Evaluator, plans: Sequence[Answer], clusters: Sequence[int], evaluated: int) -> list[list[str]]:
    """Sentences for each plan, best plan first."""
    priced: dict[int, list[str]] = {}
    for cluster in sorted(set(clusters)):
        rows = [row for row, index in enumerate(clusters) if index == cluster]
        sentences = price_alternatives(evaluator, cluster, [plans[row]["strategy"] for row in rows])
        priced.update(zip(rows, sentences, strict=True))
    return [
        [
            _standing(evaluator, plans, row, evaluated),
            _time_bound(plan, evaluator.search.clusters[clusters[row]]),
            _memory_bound(plan),
            *priced[row],
        ]
        for row, plan in enumerate(plans)
    ]


def explain_briefly(evaluator: Evaluator, plans: Sequence[Answer], clusters: Sequence[int]) -> list[list[str]]:
    """What binds each of them."""
    return [
        [_time_bound(plan, evaluator.search.clusters[cluster]), _memory_bound(plan)]
        for plan, cluster in zip(plans, clusters, strict=True)
    ]


def _standing(evaluator: Evaluator, plans: Sequence[Answer], row: int, evaluated: int) -> str:
    plan, search = plans[row], evaluator.search
    seconds = plan["time"]["step_seconds"]
    head = f"{describe(plan['strategy'])}: {seconds:.3g} s a step, MFU {plan['throughput']['mfu']:.0%}"
    if row > 0:
        best = plans[0]["time"]["step_seconds"]
        return f"{head}; {_difference(seconds, best)} than the first plan: {_reason(plan, plans[0])}."
    words = f"{OBJECTIVE_WORDS[search.objective]} of {evaluated:,} strategies scored"
    if len(plans) == 1:
        return f"{words}: {head}; no other plan fits."
    second = plans[1]
    return (
        f"{words}: {head}; {_difference(seconds, second['time']['step_seconds'])} than the next plan "
        f"({describe(second['strategy'])}): {_reason(plan, second)}."
    )


def _difference(seconds: float, other: float) -> str:
    share = (seconds / other - 1) * 100
    if abs(share) < 0.05:
        return f"as fast ({share:+.2f} %)"
    return f"{abs(seconds - other):.3g} s ({abs(share):.1f} %) {'slower' if share > 0 else 'faster'}"


def _reason(plan: Answer, other: Answer) -> str:
    """The parts of the step in which two plans differ most, each way."""
    mine, theirs = plan["time"]["breakdown_seconds"], other["time"]["breakdown_seconds"]
    deltas = sorted(((mine[name] - theirs[name], name) for name in mine), key=lambda pair: pair[0])
    (least, saved), (most, spent) = deltas[0], deltas[-1]
    words = [f"{-least:.3g} s less {_words(saved)}"] if least < 0 else []
    words += [f"{most:.3g} s more {_words(spent)}"] if most > 0 else []
    return " and ".join(words) if words else "equal in every part of the step"


def _words(part: str) -> str:
    return part.replace("_", " ")


def _time_bound(plan: Answer, cluster: Cluster) -> str:
    parts = plan["time"]["breakdown_seconds"]
    total = plan["time"]["step_seconds"]
    compute = sum(parts[name] for name in COMPUTE)
    name = max((part for part in parts if part not in COMPUTE), key=lambda part: parts[part])
    loss = parts[name]
    links = {
        "tensor_parallel": _tensor_link(plan["strategy"]["tensor_parallel_size"], cluster),
        "data_parallel": f", over {cluster.inter_node.kind}" if cluster.gpus > cluster.nvlink_domain_gpus else "",
        "offload": ", over PCIe and the host's memory",
    }
    recompute = f", {parts['recompute'] / total:.0%} of it recomputation" if parts["recompute"] > 0 else ""
    if loss <= 0:
        return f"Bound by the GPUs: all of the step is computation{recompute}."
    binding = "the GPUs" if compute >= total / 2 else _words(name)
    return (
        f"Bound by {binding}: {compute / total:.0%} of the step is computation{recompute}; the largest loss is "
        f"{_words(name)}, {loss:.3g} s ({loss / total:.0%}){links.get(name, '')}."
    )


def _tensor_link(tensor: int, cluster: Cluster) -> str:
    link = cluster.intra_node.kind if tensor <= cluster.nvlink_domain_gpus else cluster.inter_node.kind
    return f", over {link}"


def _memory_bound(plan: Answer) -> str:
    memory = plan["memory"]
    upper, capacity = memory["required_upper_gib"], memory["capacity_gib"]
    part, size = max(memory["breakdown_gib"].items(), key=lambda item: item[1])
    binds = "Memory binds" if upper > MEMORY_BINDS * capacity else "Memory"
    return (
        f"{binds}: up to {upper:.1f} of {capacity:.1f} GiB are needed ({upper / capacity:.0%}), "
        f"probability of running out {memory['oom_probability']:.2g}; the largest part is {_words(part)}, "
        f"{size:.1f} GiB."
    )
