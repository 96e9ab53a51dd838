"""Figures as sources print them, converted to what the contract measures: step_seconds and GiB.

A throughput becomes the time of the global batch. FLOP rates become it by the source's own count of FLOP: `model` as
the contract defines `mfu` (arXiv 2205.05198 and NVIDIA's tables count so), `hardware` as equation 3 of arXiv
2104.04473, with the forward pass of full recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cost_models.run_records import record_problem
from cost_models.time.flops import model_flops
from cost_models.units import GB, GIB, TERA

MEASURED: Final = frozenset(
    {
        "step_seconds",
        "peak_allocated_gib",
        "peak_reserved_gib",
        "peak_device_gib",
        "pipeline_stage",
        "out_of_memory",
    }
)
"""Fields of the contract's `measured`."""


def measured_figures(record: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """The contract's `measured` of a run from the figures that its source prints."""
    measured = {name: value for name, value in figures.items() if name in MEASURED}
    for name, value in figures.items():
        if name in _STEP_SECONDS:
            measured["step_seconds"] = _STEP_SECONDS[name](record, value)
        elif name in _GIGABYTES:
            measured[_GIGABYTES[name]] = value * GB / GIB
    return measured


def _gpus(record: Mapping[str, Any]) -> int:
    gpus: int = record["cluster"]["nodes"] * record["cluster"]["gpus_per_node"]
    return gpus


def _samples(record: Mapping[str, Any]) -> int:
    samples: int = record["workload"]["global_batch_size"]
    return samples


def _tokens(record: Mapping[str, Any]) -> int:
    tokens: int = _samples(record) * record["workload"]["sequence_length"]
    return tokens


def _peak_seconds(record: Mapping[str, Any]) -> float:
    """Of the model FLOP at the dense peak of the workload's precision."""
    problem = record_problem(record)
    return model_flops(problem) / (problem.cluster.gpu.peak_flops_per_s[problem.workload.precision] * _gpus(record))


def _hardware_flops(record: Mapping[str, Any]) -> float:
    """96 B s l h² (1 + s / 6h + V / 16lh): arXiv 2104.04473 equation 3."""
    model, sequence = record_problem(record).model, record["workload"]["sequence_length"]
    layers, hidden = len(model.layer_blocks), model.hidden_size
    rest = 1 + sequence / (6 * hidden) + model.vocab_size / (16 * layers * hidden)
    return float(96 * _tokens(record) * layers * hidden**2 * rest)


_STEP_SECONDS: Final[Mapping[str, Callable[[Mapping[str, Any], float], float]]] = {
    "samples_per_second": lambda record, rate: _samples(record) / rate,
    "samples_per_gpu_second": lambda record, rate: _samples(record) / (rate * _gpus(record)),
    "tokens_per_second": lambda record, rate: _tokens(record) / rate,
    "tokens_per_gpu_second": lambda record, rate: _tokens(record) / (rate * _gpus(record)),
    "model_tflops_per_gpu": lambda record, rate: model_flops(record_problem(record)) / (rate * TERA * _gpus(record)),
    "mfu_percent": lambda record, percent: _peak_seconds(record) / (percent / 100),
    "hardware_tflops_per_gpu": lambda record, rate: _hardware_flops(record) / (rate * TERA * _gpus(record)),
}
_GIGABYTES: Final[Mapping[str, str]] = {
    "peak_allocated_gb": "peak_allocated_gib",
    "peak_reserved_gb": "peak_reserved_gib",
    "peak_device_gb": "peak_device_gib",
}
FIGURES: Final = MEASURED | frozenset(_STEP_SECONDS) | frozenset(_GIGABYTES)
"""Columns that hold what was measured."""
