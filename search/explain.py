"""Why a plan wins, what binds it and what its nearest alternatives would cost: sentences with figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cost_models.cluster import Cluster
from cost_models.time.placement import domain_gpus
from cost_models.time.reductions import Reduction, gradient_reductions
from cost_models.units import GB, JOULES_PER_KWH
from search import collectives
from search.alternatives import Priced, price_alternatives
from search.candidates import Candidates, join
from search.describe import describe
from search.evaluator import Evaluator
from search.grounds import grounds
from search.numerics import numerics
from search.sensitivity import Change, in_words, sensitivity

COMPUTE: Final = ("forward", "backward", "recompute", "optimizer")
MEMORY_BINDS: Final = 0.9
"""Of the capacity: above, there is no room for the next step in any direction."""
LEAST_ODDS: Final = 0.001
"""Below, no bound of the memory is known well enough to tell."""
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


@dataclass(frozen=True)
class Explanation:
    """Of one plan."""

    sentences: tuple[str, ...]
    alternatives: tuple[Priced, ...] = ()
    sensitivity: tuple[Change, ...] = ()
    """Of the first plan."""
    reductions: tuple[Reduction, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What it adds to the answer of a plan."""
        return {
            "explanation": list(self.sentences),
            "alternatives": [one.as_dict() for one in self.alternatives],
            "sensitivity": [change.as_dict() for change in self.sensitivity],
            "collectives": collectives.as_data(self.reductions),
        }


@dataclass(frozen=True)
class Background:
    """What plans are explained against."""

    evaluator: Evaluator
    others: Candidates
    """Strategies that fit, the best of each family."""
    evaluated: int
    """Strategies that were scored."""
    current: Answer | None
    """What is run today."""


def explain(plans: Candidates, written: Sequence[Answer], background: Background) -> list[Explanation]:
    """Each plan, best plan first. `written`: their answers."""
    if not len(plans):
        return []
    evaluator = background.evaluator
    clusters = plans.cluster.tolist()
    priced: dict[int, list[Priced]] = {}
    reductions: dict[int, tuple[Reduction, ...]] = {}
    nearby: list[Candidates] = []
    for cluster in sorted(set(clusters)):
        rows = [row for row, index in enumerate(clusters) if index == cluster]
        found, scored = price_alternatives(evaluator, cluster, [written[row]["strategy"] for row in rows])
        priced.update(zip(rows, found, strict=True))
        reductions.update(
            zip(
                rows,
                gradient_reductions(evaluator.search.problems[cluster], plans.table.take(np.array(rows))),
                strict=True,
            )
        )
        nearby.append(scored)
    if _binds(written[0]["memory"]):
        priced[0] += numerics(evaluator, clusters[0], written[0], priced[0])
    changes = tuple(sensitivity(evaluator, plans, join([background.others, *nearby])))
    values = [_value(evaluator, plan) for plan in written]
    return [
        Explanation(
            sentences=(
                _standing(evaluator, written, row, background.evaluated),
                _time_bound(plan, evaluator.search.clusters[clusters[row]]),
                _memory_bound(plan),
                *(_against(evaluator, plan, background.current) if row == 0 else ()),
                *filter(None, [collectives.in_words(reductions[row])] if row == 0 else ()),
                *(grounds(evaluator.search.problems[clusters[0]], written, values) if row == 0 else ()),
                *(one.sentence for one in priced[row] if one.figures is not None),
                *(in_words(changes) if row == 0 else ()),
            ),
            alternatives=tuple(priced[row]),
            sensitivity=changes if row == 0 else (),
            reductions=reductions[row],
        )
        for row, plan in enumerate(written)
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
        f"{mine['capacity_gib']:.1f} GiB, probability of running out {_odds(mine['oom_probability'])} instead "
        f"of {_odds(theirs['oom_probability'])}"
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


def explain_briefly(
    evaluator: Evaluator, plans: Sequence[Answer], clusters: Sequence[int], mark: str
) -> list[Explanation]:
    """`mark`, and what binds each of them."""
    return [
        Explanation((mark, _time_bound(plan, evaluator.search.clusters[cluster]), _memory_bound(plan)))
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
    count = plan["nodes"]
    nodes = f" on {count} node{'s' if count > 1 else ''}" if len(evaluator.search.clusters) > 1 else ""
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
    recompute = f" ({parts['recompute'] / total:.0%} recomputation)" if parts["recompute"] > 0 else ""
    if loss <= 0:
        return f"Bound by the GPUs: all of the step is computation{recompute}."
    binding = "the GPUs" if compute >= total / 2 else _words(name)
    return (
        f"Bound by {binding}: {compute / total:.0%} of the step is computation{recompute}; the largest loss is "
        f"{_words(name)}, {loss:.3g} s ({_share(loss / total)}){_link(name, plan['strategy'], cluster)}."
    )


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def _link(part: str, strategy: Mapping[str, Any], cluster: Cluster) -> str:
    """Over what the groups of a part talk, as far as they reach."""
    if part == "offload":
        return ", over PCIe and the host's memory"
    tensor = strategy["tensor_parallel_size"]
    reach = {
        "tensor_parallel": tensor,
        "context_parallel": tensor * strategy["context_parallel_size"],
        "expert_parallel": strategy["expert_parallel_size"] * strategy["expert_tensor_parallel_size"],
        "data_parallel": cluster.gpus // strategy["pipeline_parallel_size"],
        "pipeline_communication": cluster.gpus,
    }
    if part not in reach:
        return ""
    link = cluster.intra_node if reach[part] <= domain_gpus(cluster) else cluster.inter_node
    return f", over {link.kind} at {link.bytes_per_s / GB:.3g} GB/s a GPU"


def _memory_bound(plan: Answer) -> str:
    memory = plan["memory"]
    upper, capacity = memory["required_upper_gib"], memory["capacity_gib"]
    part, size = max(memory["breakdown_gib"].items(), key=lambda item: item[1])
    binds = "Memory binds" if _binds(memory) else "Memory"
    return (
        f"{binds}: up to {upper:.1f} of {capacity:.1f} GiB are needed ({upper / capacity:.0%}), "
        f"probability of running out {_odds(memory['oom_probability'])}; the largest part is {_words(part)}, "
        f"{size:.1f} GiB."
    )


def _binds(memory: Mapping[str, Any]) -> bool:
    return bool(memory["required_upper_gib"] > MEMORY_BINDS * memory["capacity_gib"])


def _odds(probability: float) -> str:
    return f"{probability:.1%}" if probability >= LEAST_ODDS else f"under {LEAST_ODDS:.1%}"
