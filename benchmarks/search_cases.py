"""The searches that `benchmarks.regret` judges: SearchRequests of the API by name, as plain data on presets.

The largest lattice has 1.6 million points: none has to be narrowed to be scored point by point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.schemas.searches import SearchRequest
from app.services.problems import search_problem
from search import SearchProblem

SECONDS: Final = 3600.0
"""Nobody waits for a benchmark: every search ends by its trials."""
SLOW_ETHERNET: Final[Mapping[str, Any]] = {"kind": "ethernet", "gbps_per_gpu": 3.125, "oversubscription": 1.0}
"""25 Gb/s of a host shared by eight GPUs."""


@dataclass(frozen=True)
class Case:
    """One search."""

    group: str
    model: str
    cluster: Mapping[str, Any]
    workload: Mapping[str, Any]

    def request(self, *, trials: int, seed: int = 0) -> dict[str, Any]:
        """The body of `POST /v1/searches`."""
        return {
            "model": {"preset": self.model},
            "cluster": dict(self.cluster),
            "workload": dict(self.workload),
            "budget": {"trials": trials, "seconds": SECONDS},
            "plans": 1,
            "seed": seed,
        }

    def search(self, *, trials: int = 1, seed: int = 0) -> SearchProblem:
        """The search that the service would run, by the formulas alone."""
        request = SearchRequest.model_validate(self.request(trials=trials, seed=seed))
        return search_problem(request).problem


def _preset(name: str, nodes: int) -> dict[str, Any]:
    return {"preset": name, "nodes": nodes}


def _hosts(gpu: str, nodes: int, gpus_per_node: int = 8, **described: Any) -> dict[str, Any]:
    return {"gpu": gpu, "nodes": nodes, "gpus_per_node": gpus_per_node, **described}


def _steps(sequence_length: int, global_batch_size: int, **options: Any) -> dict[str, Any]:
    return {"sequence_length": sequence_length, "global_batch_size": global_batch_size, **options}


_LORA: Final[Mapping[str, Any]] = {"fine_tuning": {"method": "lora"}}
_QLORA: Final[Mapping[str, Any]] = {"fine_tuning": {"method": "qlora"}}
_HOST: Final[Mapping[str, Any]] = {"host": {"memory_gib": 512}}
_SLOW: Final[Mapping[str, Any]] = {"inter_node": dict(SLOW_ETHERNET)}

CASES: Final[Mapping[str, Case]] = {
    # One GPU to one host.
    "gpt-2-xl, 1 A100": Case("one host", "gpt-2-xl", _hosts("a100-sxm4-80gb", 1, 1), _steps(1024, 64)),
    "llama-2-7b, 1 H100": Case("one host", "llama-2-7b", _hosts("h100-sxm5-80gb", 1, 1, **_HOST), _steps(4096, 16)),
    "llama-3-8b, 8 H100": Case("one host", "llama-3-8b", _preset("dgx-h100", 1), _steps(8192, 128)),
    "llama-3-8b fp8, 8 H100": Case(
        "one host", "llama-3-8b", _preset("dgx-h100", 1), _steps(8192, 128, precision="fp8")
    ),
    "qwen2.5-14b, 8 A100": Case("one host", "qwen2.5-14b", _preset("dgx-a100", 1), _steps(4096, 64)),
    "gemma-2-27b, 8 MI300X": Case("one host", "gemma-2-27b", _preset("mi300x-node", 1), _steps(8192, 64)),
    "llama-3-70b, 8 B200": Case("one host", "llama-3-70b", _preset("dgx-b200", 1), _steps(8192, 64)),
    "bert-large, 8 V100-16": Case("one host", "bert-large", _hosts("v100-sxm2-16gb", 1), _steps(512, 256)),
    # Several hosts.
    "gpt-2-xl, 32 V100-32": Case("dense", "gpt-2-xl", _hosts("v100-sxm2-32gb", 4), _steps(1024, 512)),
    "llama-2-13b, 32 A100-40": Case("dense", "llama-2-13b", _preset("p4d", 4), _steps(4096, 256)),
    "llama-3-70b, 64 H100": Case("dense", "llama-3-70b", _preset("dgx-h100", 8), _steps(8192, 128)),
    "llama-3.1-70b fp8, 64 H100": Case(
        "dense", "llama-3.1-70b", _preset("dgx-h100", 8), _steps(8192, 256, precision="fp8")
    ),
    "qwen2.5-72b, 128 MI300X": Case("dense", "qwen2.5-72b", _preset("mi300x-node", 16), _steps(4096, 512)),
    "bloom-176b, 384 A100": Case("dense", "bloom-176b", _preset("dgx-a100", 48), _steps(2048, 2048)),
    "gpt-3-175b, 128 H200": Case("dense", "gpt-3-175b", _preset("dgx-h200", 16), _steps(2048, 1536)),
    "gemma-2-27b, 24 H100": Case("dense", "gemma-2-27b", _preset("dgx-h100", 3), _steps(8192, 96)),
    "llama-3-70b, 72 GB200": Case("dense", "llama-3-70b", _preset("gb200-nvl72", 18), _steps(8192, 144)),
    "llama-3.1-405b, 144 GB200": Case("dense", "llama-3.1-405b", _preset("gb200-nvl72", 36), _steps(8192, 288)),
    "llama-3.1-405b, 1,024 H100": Case("dense", "llama-3.1-405b", _preset("dgx-h100", 128), _steps(8192, 1024)),
    "llama-3.1-405b, 16,384 H100": Case("dense", "llama-3.1-405b", _preset("dgx-h100", 2048), _steps(8192, 2048)),
    # Experts.
    "mixtral-8x7b, 16 H100": Case("experts", "mixtral-8x7b", _preset("dgx-h100", 2), _steps(4096, 128)),
    "gpt-oss-20b, 8 H100": Case("experts", "gpt-oss-20b", _preset("dgx-h100", 1), _steps(8192, 64)),
    "qwen3-30b-a3b, 16 A100": Case("experts", "qwen3-30b-a3b", _preset("dgx-a100", 2), _steps(4096, 128)),
    "mixtral-8x22b, 64 MI300X": Case("experts", "mixtral-8x22b", _preset("mi300x-node", 8), _steps(4096, 256)),
    "qwen3-235b-a22b, 256 H100": Case("experts", "qwen3-235b-a22b", _preset("dgx-h100", 32), _steps(4096, 2048)),
    "deepseek-v3, 1,024 H100": Case("experts", "deepseek-v3", _preset("dgx-h100", 128), _steps(4096, 8192)),
    "deepseek-v2, 72 GB200": Case("experts", "deepseek-v2", _preset("gb200-nvl72", 18), _steps(4096, 576)),
    # Long sequences.
    "llama-3.1-8b 128k, 8 H100": Case("long", "llama-3.1-8b", _preset("dgx-h100", 1), _steps(131072, 8)),
    "llama-3.1-8b 128k, 64 H100": Case("long", "llama-3.1-8b", _preset("dgx-h100", 8), _steps(131072, 32)),
    "llama-3.1-70b 128k, 256 H100": Case("long", "llama-3.1-70b", _preset("dgx-h100", 32), _steps(131072, 64)),
    # Adapters.
    "llama-2-70b LoRA, 8 H100": Case("adapters", "llama-2-70b", _preset("dgx-h100", 1), _steps(8192, 32, **_LORA)),
    "llama-3-8b QLoRA, 1 RTX 4090": Case(
        "adapters", "llama-3-8b", _hosts("rtx-4090-24gb", 1, 1), _steps(2048, 16, **_QLORA)
    ),
    "llama-3-70b LoRA, 16 A100-40": Case("adapters", "llama-3-70b", _preset("p4d", 2), _steps(4096, 32, **_LORA)),
    # Slow links and small cards.
    "llama-2-13b, 32 A100 on 25 GbE": Case(
        "slow links, small cards", "llama-2-13b", _hosts("a100-sxm4-80gb", 4, **_SLOW), _steps(4096, 256)
    ),
    "llama-3-70b, 64 H100 on 25 GbE": Case(
        "slow links, small cards", "llama-3-70b", _hosts("h100-sxm5-80gb", 8, **_SLOW), _steps(8192, 128)
    ),
    "llama-2-7b, 4 RTX 3090": Case(
        "slow links, small cards", "llama-2-7b", _hosts("rtx-3090-24gb", 1, 4, **_HOST), _steps(2048, 32)
    ),
    "llama-2-13b, 16 RTX 4090": Case(
        "slow links, small cards", "llama-2-13b", _hosts("rtx-4090-24gb", 2, **_HOST), _steps(2048, 64)
    ),
    "qwen2.5-7b, 8 L4": Case("slow links, small cards", "qwen2.5-7b", _hosts("l4-24gb", 1, **_HOST), _steps(4096, 32)),
    # Nothing fits.
    "llama-3-70b, 1 RTX 4090": Case("nothing fits", "llama-3-70b", _hosts("rtx-4090-24gb", 1, 1), _steps(4096, 8)),
    "llama-3.1-405b, 8 V100-16": Case("nothing fits", "llama-3.1-405b", _hosts("v100-sxm2-16gb", 1), _steps(4096, 32)),
}
