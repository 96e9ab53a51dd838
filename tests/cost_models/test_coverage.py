"""The stored list of measured runs."""

from __future__ import annotations

import pytest

from cost_models.catalog.hardware import gpu_names, load_gpu
from cost_models.catalog.models import load_model
from cost_models.coverage import MeasuredRuns, coverage
from cost_models.hf_config import read_hf_config
from cost_models.model_kind import KINDS, model_kind
from cost_models.strategy import FRAMEWORKS, PRECISIONS
from cost_models.workload import FineTuning, Workload

ALL = [*coverage().time, *coverage().memory]


@pytest.mark.parametrize("runs", ALL, ids=lambda runs: f"{runs.chip}-{runs.framework}")
def test_every_run_is_counted_once_by_kind_precision_and_stage(runs: MeasuredRuns) -> None:
    assert sum(runs.kinds.values()) == sum(runs.precisions.values()) == sum(runs.zero_stages.values()) == runs.runs
    assert 1 <= runs.least_gpus <= runs.most_gpus
    assert set(runs.kinds) <= set(KINDS)
    assert set(runs.precisions) <= set(PRECISIONS)
    assert set(runs.zero_stages) <= set("0123")
    assert runs.framework in FRAMEWORKS
    assert (runs.chip, runs.generation) in {(load_gpu(name).chip, load_gpu(name).generation) for name in gpu_names()}


def test_an_entry_is_one_silicon_and_framework() -> None:
    for entries in (coverage().time, coverage().memory):
        assert len({(runs.chip, runs.framework) for runs in entries}) == len(entries)


def test_runs_are_found_by_silicon_for_time_and_by_generation_for_memory() -> None:
    found = coverage().time_runs("ga100", "megatron-lm")
    assert found is not None
    assert found.runs > 1000
    assert coverage().time_runs("ga102", "megatron-lm") is None
    assert coverage().time_runs(None, "megatron-lm") is None
    assert {runs.chip for runs in coverage().memory_runs("ampere", "ddp")} == {"ga100"}
    assert coverage().memory_runs("turing", "ddp") == ()


T5 = {"model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6}


@pytest.mark.parametrize(
    ("model", "fine_tuning", "kind"),
    [
        ("llama-3-8b", None, "dense"),
        ("mixtral-8x7b", None, "moe"),
        ("deepseek-v3", None, "moe"),
        ("bert-large", None, "encoder"),
        ("vit-h", None, "vision"),
        ("llama-3-8b", FineTuning("lora"), "lora"),
        ("mixtral-8x7b", FineTuning("qlora"), "qlora"),
    ],
)
def test_kinds_of_models(model: str, fine_tuning: FineTuning | None, kind: str) -> None:
    assert model_kind(load_model(model), Workload(512, 8, fine_tuning=fine_tuning)) == kind


def test_an_encoder_with_a_decoder_is_a_kind_of_its_own() -> None:
    assert model_kind(read_hf_config({**T5, "vocab_size": 32128}), Workload(512, 8)) == "encoder-decoder"
