"""What the widespread claims about distributed training come to: each answered by estimates on a named case.

usage: python -m benchmarks.claims

Formulas alone, nothing learned, memory at confidence 0.9. A claim of memory compares peaks as the device shows them; a
claim of speed compares whole optimizer steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cost_models.answer import full_answers
from cost_models.catalog.models import load_model
from cost_models.cluster import Cluster
from cost_models.cluster_input import load_cluster_preset, resolve_cluster
from cost_models.estimate import estimate
from cost_models.problem import Problem
from cost_models.resolve import resolve_strategies
from cost_models.strategy import partial_columns
from cost_models.workload import Precision, Workload, usual_attention
from search import SearchProblem, run_search
from search.result import Progress, SearchResult, Trial

CONFIDENCE: Final = 0.9
MOST_NODES: Final = 24
SECONDS: Final = 60.0
DAYS: Final = 30.0


def answers(model: str, cluster: Cluster, workload: Workload, *strategies: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Estimates of strategies that break no rule, in the words of the contract; they need not fit."""
    problem = Problem(load_model(model), cluster, workload)
    table = resolve_strategies(problem, partial_columns(list(strategies))).table
    found = full_answers(estimate(problem, table, memory_confidence=CONFIDENCE))
    for answer in found:
        if not answer["valid"]:
            raise ValueError(f"a case of this benchmark breaks a rule: {answer['violations']}")
    return found


def searched(search: SearchProblem) -> SearchResult:
    """The plans of a search that nobody waits for."""
    return run_search(search, report=_unheard, cancelled=lambda: False, clock=time.perf_counter)


def fewest_gpus(preset: str, space: Mapping[str, tuple[Any, ...]]) -> tuple[int, str]:
    """GPUs of the smallest job of whole hosts that trains GPT-3 175B, and how its fastest plan lays it out."""
    for nodes in range(1, MOST_NODES + 1):
        cluster = load_cluster_preset(preset, nodes)
        search = SearchProblem(
            model=load_model("gpt-3-175b"),
            clusters=(cluster,),
            workload=Workload(2048, 64 * nodes),
            space=space,
            trials=0,
            seconds=SECONDS,
            memory_confidence=CONFIDENCE,
        )
        if plans := searched(search).plans:
            plan = plans[0]["strategy"]
            return cluster.gpus, (
                f"{plan['framework']}, TP {plan['tensor_parallel_size']}, PP {plan['pipeline_parallel_size']}, "
                f"DP {plan['data_parallel_size']}, ZeRO {plan['zero_stage']}, {plan['activation_checkpointing']} "
                f"checkpointing, offload {plan['offload']}"
            )
    raise ValueError(f"nothing fits on {MOST_NODES} hosts")


def gpus_of_175b() -> Iterator[str]:
    """ "175B needs 140 A100, with ZeRO-3 24"."""
    yield "175B needs 140 A100, with ZeRO-3 24 (GPT-3 175B, bf16, AdamW, sequence 2048, DGX A100)"
    whole = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"), (1,))
    alone: dict[str, tuple[Any, ...]] = {**whole, "zero_stage": (3,)}
    kept: dict[str, tuple[Any, ...]] = {"offload": ("none",)}
    spaces: tuple[tuple[str, dict[str, tuple[Any, ...]]], ...] = (
        ("ZeRO-0, TP and PP, no offload", {**kept, "zero_stage": (0,)}),
        ("ZeRO-3 alone, no offload", {**kept, **alone}),
        ("anything but offload", kept),
        ("ZeRO-3 alone, optimizer on the CPU", {**alone, "offload": ("optimizer",)}),
        ("anything, NVMe as well", {}),
    )
    for preset in ("dgx-a100", "p4d"):
        for name, space in spaces:
            gpus, layout = fewest_gpus(preset, space)
            yield f"  {preset}, {name}: from {gpus} GPUs ({layout})"


def zero_3() -> Iterator[str]:
    """ "ZeRO-3 cuts memory to a tenth"."""
    yield "ZeRO-3 cuts memory to a tenth (Llama-2-7B, deepspeed, DGX A100, sequence 4096, all recomputed)"
    common = {"framework": "deepspeed", "micro_batch_size": 1, "activation_checkpointing": "full"}
    for nodes in (1, 2, 8):
        replicated, sharded = answers(
            "llama-2-7b",
            load_cluster_preset("dgx-a100", nodes),
            Workload(4096, 128),
            *({**common, "zero_stage": stage} for stage in (0, 3)),
        )
        yield (
            f"  {8 * nodes} GPUs: peak {_peak(replicated):.1f} -> {_peak(sharded):.1f} GiB "
            f"({_peak(sharded) / _peak(replicated):.0%}), "
            f"states {_states(replicated):.1f} -> {_states(sharded):.1f} GiB "
            f"({_states(sharded) / _states(replicated):.1%}), step {_step(sharded) / _step(replicated):.2f} x"
        )


def checkpointing() -> Iterator[str]:
    """ "Checkpointing saves 30-60 % of activations for 15-25 % more forward time"."""
    yield "Checkpointing saves 30-60 % of activations for 15-25 % more forward time (8 H100, bf16, micro-batch 1)"
    cases: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Llama-3-8B, fsdp2, sequence 8192", "llama-3-8b", {"framework": "fsdp2", "zero_stage": 3}),
        (
            "Llama-3-8B, megatron-lm TP 2, sequence 8192",
            "llama-3-8b",
            {"framework": "megatron-lm", "tensor_parallel_size": 2, "zero_stage": 1},
        ),
    )
    for name, model, layout in cases:
        none, *others = answers(
            model,
            load_cluster_preset("dgx-h100", 1),
            Workload(8192, 64),
            *(
                {**layout, "micro_batch_size": 1, "activation_checkpointing": kind}
                for kind in ("none", "selective", "full")
            ),
        )
        for kind, other in zip(("selective", "full"), others, strict=True):
            before, after = _part(none, "activations"), _part(other, "activations")
            again = _seconds(other, "recompute") / _seconds(none, "forward")
            slower = _step(other) / _step(none)
            yield (
                f"  {name}, {kind}: activations {before:.1f} -> {after:.1f} GiB "
                f"({1 - after / before:.0%} less), recomputed {again:.0%} of the forward pass, step {slower:.2f} x"
            )


def offload() -> Iterator[str]:
    """ "CPU offload saves 70 % and more"."""
    yield "CPU offload saves 70 % and more (Llama-3-8B, deepspeed, A100-80, sequence 4096, full checkpointing)"
    common = {"framework": "deepspeed", "micro_batch_size": 1, "activation_checkpointing": "full"}
    for nodes in (1, 8):
        for stage, kinds in ((2, ("none", "optimizer")), (3, ("none", "optimizer", "optimizer-and-parameters"))):
            kept, *moved = answers(
                "llama-3-8b",
                load_cluster_preset("dgx-a100", nodes),
                Workload(4096, 64 * nodes),
                *({**common, "zero_stage": stage, "offload": kind} for kind in kinds),
            )
            for kind, other in zip(kinds[1:], moved, strict=True):
                yield (
                    f"  {8 * nodes} GPUs, ZeRO-{stage}, {kind}: peak {_peak(kept):.1f} -> {_peak(other):.1f} GiB "
                    f"({1 - _peak(other) / _peak(kept):.0%} less), step {_step(other) / _step(kept):.2f} x"
                )


def half_precision() -> Iterator[str]:
    """ "fp16 is 2-3x faster"."""
    yield "fp16 is 2-3x faster than fp32 (8 GPUs of one host, ddp, batch 64)"
    gpus = {"V100-32": "v100-sxm2-32gb", "A100-80": "a100-sxm4-80gb", "H100": "h100-sxm5-80gb"}
    for name, gpu in gpus.items():
        cluster = resolve_cluster({"nodes": 1, "gpus_per_node": 8, "gpu": gpu})
        precisions: tuple[Precision, ...] = ("fp32", "fp16")
        layout = {"framework": "ddp", "micro_batch_size": 1}
        full, half = (
            answers(
                "gpt-2-xl",
                cluster,
                Workload(1024, 64, precision=precision, attention=usual_attention(cluster.gpu)),
                layout,
            )[0]
            for precision in precisions
        )
        yield f"  {name}, GPT-2 XL: {_step(full):.2f} -> {_step(half):.2f} s, {_step(full) / _step(half):.1f} x"


def tuning() -> Iterator[str]:
    """ "Tuning turns 30 days into 7"."""
    yield "Tuning turns 30 days into 7 (first plan of a search beside ZeRO-3, micro-batch 1, full checkpointing)"
    ethernet = {"kind": "ethernet", "gbps_per_gpu": 12.5}
    cases: tuple[tuple[str, str, Cluster, Workload], ...] = (
        ("Llama-3-70B, 64 H100, InfiniBand", "llama-3-70b", load_cluster_preset("dgx-h100", 8), Workload(8192, 128)),
        (
            "Llama-3-70B, 64 H100, Ethernet of 100 Gb/s a host",
            "llama-3-70b",
            resolve_cluster({"nodes": 8, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb", "inter_node": ethernet}),
            Workload(8192, 128),
        ),
        ("Llama-3-8B, 8 H100", "llama-3-8b", load_cluster_preset("dgx-h100", 1), Workload(8192, 128)),
    )
    plain = {"zero_stage": 3, "micro_batch_size": 1, "activation_checkpointing": "full"}
    for name, model, cluster, workload in cases:
        search = SearchProblem(
            model=load_model(model),
            clusters=(cluster,),
            workload=workload,
            seconds=SECONDS,
            memory_confidence=CONFIDENCE,
        )
        best = searched(search).plans[0]
        for framework in ("fsdp2", "deepspeed"):
            start = answers(model, cluster, workload, {"framework": framework, **plain})[0]
            ratio = _step(start) / _step(best)
            by = best["strategy"]["framework"]
            fits = "" if start["fits"] else ", which does not fit"
            yield (
                f"  {name}: {framework} {_step(start):.1f}{fits} -> "
                f"{by} {_step(best):.1f} s, {ratio:.2f} x: {DAYS:g} days become {DAYS / ratio:.1f}"
            )


def _unheard(progress: Progress, trials: Sequence[Trial]) -> None:
    """Nobody looks on."""


def _peak(answer: Mapping[str, Any]) -> float:
    return float(answer["memory"]["peak_gib"])


def _part(answer: Mapping[str, Any], name: str) -> float:
    return float(answer["memory"]["breakdown_gib"][name])


def _states(answer: Mapping[str, Any]) -> float:
    return sum(_part(answer, name) for name in ("parameters", "gradients", "optimizer_states"))


def _step(answer: Mapping[str, Any]) -> float:
    return float(answer["time"]["step_seconds"])


def _seconds(answer: Mapping[str, Any], name: str) -> float:
    return float(answer["time"]["breakdown_seconds"][name])


CLAIMS: Final[Sequence[Callable[[], Iterator[str]]]] = (
    zero_3,
    checkpointing,
    offload,
    half_precision,
    tuning,
    gpus_of_175b,
)


def main() -> None:
    """Print every claim and what the estimates say."""
    for claim in CLAIMS:
        for line in claim():
            print(line, flush=True)


if __name__ == "__main__":
    main()
