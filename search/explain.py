"""Why a plan wins, what binds it and what its nearest alternatives would cost: sentences with figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cost_models.cluster import Cluster
from cost_models.units import JOULES_PER_KWH
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
COMPARATIVES: Final = {
    "step_time": ("faster", "slower"),
    "cost": ("cheaper", "dearer"),
    "energy": ("less energy", "more energy"),
    "pareto": ("faster", "slower"),
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
    ):
        if strategy[name] > 1:
            words.append(f"{short}{strategy[name]}")
    words.append(f"ZeRO-{strategy['zero_stage']}")
    details = [f"micro-batch {strategy['micro_batch_size']}"]
    if strategy["data_parallel_replicate_size"] > 1:
        details.insert(0, f"{strategy['data_parallel_replicate_size']} replicas of the shards")
    mode = strategy["activation_checkpointing"]
    details.append("no checkpointing" if mode == "none" else f"{mode} checkpointing")
    if mode == "full":
        details[-1] += f" of {strategy['checkpointed_layers']} layers a stage"
    if strategy["offload"] != "none":
        details.append(f"offload of {strategy['offload']} ({strategy['offload_fraction']:.0%})")
    chunks = strategy["layers_per_stage"]
    if len(set(chunks)) > 1:
        details.append(
            f"{min(chunks)} to {max(chunks)} layers a chunk, {chunks[0]} on the first, {chunks[-1]} on the last"
        )
    return f"{' '.join(words)}, {', '.join(details)}"


def explain(
    evaluator: Evaluator, plans: Sequence[Answer], clusters: Sequence[int], evaluated: int, current: Answer | None
) -> list[list[str]]:
    """Sentences for each plan, best plan first; the first is set against what is run today."""
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
            *(_against(evaluator, plan, current) if row == 0 else ()),
            *priced[row],
        ]
        for row, plan in enumerate(plans)
    ]


def _against(evaluator: Evaluator, plan: Answer, current: Answer | None) -> list[str]:
    if current is None or not current["valid"] or current["strategy"] == plan["strategy"]:
        return []
    return [gain_and_risk(evaluator, plan, current)]


def gain_and_risk(evaluator: Evaluator, plan: Answer, other: Answer) -> str:
    """What a plan wins over another strategy that breaks no rule, in which parts of the step, and what it stakes."""
    mine, theirs = plan["memory"], other["memory"]
    stakes = [
        f"up to {mine['required_upper_gib']:.1f} instead of {theirs['required_upper_gib']:.1f} of "
        f"{mine['capacity_gib']:.1f} GiB, probability of running out {mine['oom_probability']:.2g} instead of "
        f"{theirs['oom_probability']:.2g}"
    ]
    if other["strategy"]["offload"] == "none" != plan["strategy"]["offload"]:
        stakes.append(f"{plan['strategy']['offload']} on the host, over PCIe")
    if plan["provenance"]["time"] != other["provenance"]["time"]:
        stakes.append(f"a time that is {plan['provenance']['time']}, not {other['provenance']['time']}")
    known = {warning["code"] for warning in other["warnings"]}
    if warned := [warning["code"] for warning in plan["warnings"] if warning["code"] not in known]:
        stakes.append(f"warned of {', '.join(warned)}")
    return (
        f"Over {describe(other['strategy'])}: {_difference(evaluator, plan, other)}, {_reason(plan, other)}; "
        f"at stake: {'; '.join(stakes)}."
    )


def explain_briefly(evaluator: Evaluator, plans: Sequence[Answer], clusters: Sequence[int]) -> list[list[str]]:
    """What binds each of them."""
    return [
        [_time_bound(plan, evaluator.search.clusters[cluster]), _memory_bound(plan)]
        for plan, cluster in zip(plans, clusters, strict=True)
    ]


def _standing(evaluator: Evaluator, plans: Sequence[Answer], row: int, evaluated: int) -> str:
    plan = plans[row]
    head = f"{_named(evaluator, plan)}: {_price(evaluator, plan)} a step, MFU {plan['throughput']['mfu']:.0%}"
    if row > 0:
        return f"{head}; {_difference(evaluator, plan, plans[0])} than the first plan: {_reason(plan, plans[0])}."
    words = f"{OBJECTIVE_WORDS[evaluator.search.objective]} of {evaluated:,} strategies scored"
    if len(plans) == 1:
        return f"{words}: {head}; no other plan fits."
    return (
        f"{words}: {head}; {_difference(evaluator, plan, plans[1])} than the next plan "
        f"({_named(evaluator, plans[1])}): {_reason(plan, plans[1])}."
    )


def _named(evaluator: Evaluator, plan: Answer) -> str:
    nodes = f" on {plan['nodes']} nodes" if len(evaluator.search.clusters) > 1 else ""
    return f"{describe(plan['strategy'])}{nodes}"


def _value(evaluator: Evaluator, plan: Answer) -> float:
    """What is minimised, of one step."""
    clusters = evaluator.search.clusters
    index = next(number for number, cluster in enumerate(clusters) if cluster.nodes == plan["nodes"])
    return float(plan["time"]["step_seconds"]) * evaluator.price(index)


def _price(evaluator: Evaluator, plan: Answer) -> str:
    seconds, value = f"{plan['time']['step_seconds']:.3g} s", _value(evaluator, plan)
    if evaluator.search.objective == "cost":
        return f"{seconds} and {value:.3g} USD"
    if evaluator.search.objective == "energy":
        return f"{seconds} and {value / JOULES_PER_KWH:.3g} kWh"
    return seconds


def _difference(evaluator: Evaluator, plan: Answer, other: Answer) -> str:
    value, reference = _value(evaluator, plan), _value(evaluator, other)
    share = (value / reference - 1) * 100
    less, more = COMPARATIVES[evaluator.search.objective]
    amount = f"{abs(value - reference):.3g} s, " if evaluator.search.objective in ("step_time", "pareto") else ""
    percent = f"{abs(share):.1f} %" if abs(share) >= 0.05 else "under 0.1 %"
    return f"{amount}{percent} {less if share <= 0 else more}"


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
