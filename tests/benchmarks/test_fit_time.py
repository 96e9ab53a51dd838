"""The fit of the time model on made-up runs: what it sees, what it is scored on, and that it learns."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.families import Families, predicted_seconds
from benchmarks.fit_ranges import RANGES
from benchmarks.fit_time import TOML, Fit, cold, read, request_numbers, splits
from benchmarks.measured_runs import load_groups
from cost_models.time.coefficients import coefficients_from, default_coefficients


def run(key: int, family: str, seconds: float | None = 1.0, source: str = "", **strategy: Any) -> dict[str, Any]:
    return {
        "key": f"{family}/{key}",
        "model": {"preset": "llama-3-8b"},
        "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
        "workload": {"sequence_length": 4096, "global_batch_size": 64},
        "strategy": {"framework": "megatron-lm", "zero_stage": 1, **strategy},
        "measured": {"step_seconds": seconds} if seconds else {"peak_reserved_gib": 40.0},
        "source": source or family,
        "family": family,
    }


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    file = path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(record) for record in records))
    return file


RECORDS = [
    run(0, "lab", tensor_parallel_size=1),
    run(1, "lab", tensor_parallel_size=2),
    run(2, "lab", tensor_parallel_size=1),  # the first request once more
    run(3, "lab", None, tensor_parallel_size=8),  # no step time
    run(4, "lab", tensor_parallel_size=4),
    run(5, "papers", source="actrecompute-tab5", micro_batch_size=2),
    *(run(6 + size, "simumax", micro_batch_size=4, tensor_parallel_size=size) for size in (1, 2, 4, 8)),
]


def keys(families: Families) -> set[str]:
    return {record["key"] for group in families.all_groups for record in group.records}


class TestParts:
    def test_requests_are_numbered_in_order_and_twins_alike(self, tmp_path: Path) -> None:
        numbers = request_numbers(written(tmp_path, RECORDS))
        assert numbers == {
            "lab/0": 0,
            "lab/1": 1,
            "lab/2": 0,
            "lab/4": 2,
            "papers/5": 3,
            "simumax/7": 4,
            "simumax/8": 5,
            "simumax/10": 6,
            "simumax/14": 7,
        }

    def test_no_run_is_fitted_and_scored(self, tmp_path: Path) -> None:
        file = written(tmp_path, RECORDS)
        families = Families.of(load_groups(file))
        odd, even, table_5, b200 = splits(families, request_numbers(file))
        everything = keys(families)
        for _, fitted, scored in (odd, even, table_5, b200):
            assert not keys(fitted) & keys(scored)
            assert keys(fitted) | keys(scored) == everything
        assert keys(odd[2]) == keys(even[1]) == {"lab/0", "lab/4", "simumax/7", "simumax/10"}
        assert keys(table_5[2]) == {"papers/5"}
        assert keys(b200[2]) == {"simumax/8", "simumax/10"}

    def test_cold_leaves_a_whole_family_out(self, tmp_path: Path) -> None:
        families = Families.of(load_groups(written(tmp_path, RECORDS)))
        (_, fitted, scored), *others = cold(families, [])
        assert keys(scored) == {"lab/0", "lab/1", "lab/4"}
        assert keys(fitted) == keys(families) - keys(scored)
        assert len(others) == 2

    def test_a_part_is_predicted_as_the_whole_is(self, tmp_path: Path) -> None:
        families = Families.of(load_groups(written(tmp_path, RECORDS)))
        part = families.where(lambda record: record["key"] == "lab/4")
        whole = predicted_seconds(families.groups["lab"][0], default_coefficients())
        assert predicted_seconds(part.groups["lab"][0], default_coefficients()) == pytest.approx(whole[2:])


def test_a_fit_finds_the_efficiency_that_made_the_runs(tmp_path: Path) -> None:
    families = Families.of(load_groups(written(tmp_path, RECORDS[:2])))
    document = tomllib.loads(TOML.read_text())
    path = "generation.hopper.gemm"
    middle = Fit(families, document)
    start = middle.ratios(np.full(len(RANGES), 0.5))
    there = np.full(len(RANGES), 0.5)
    there[list(RANGES).index(path)] = 0.9
    made = {key: float(np.exp(ratio)) for key, ratio in zip(("lab/0", "lab/1"), middle.ratios(there)[0], strict=True)}
    records = [record | {"measured": {"step_seconds": made[record["key"]]}} for record in RECORDS[:2]]
    fit = Fit(Families.of(load_groups(written(tmp_path, records))), document)
    found = fit.run(3)
    left = [np.log(predicted_seconds(g, coefficients_from(found)) / g.step_seconds) for g in fit.groups]
    assert np.abs(np.concatenate(left)).max() < 0.02 < np.abs(np.concatenate(start) - np.log(list(made.values()))).max()
    assert read(found, path) > RANGES[path].at(0.5)
