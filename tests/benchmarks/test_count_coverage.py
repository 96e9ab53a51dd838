"""The list of measured runs, as it is counted from RunRecords."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.coverage import document


def run(measured: dict[str, float], nodes: int = 1, gpu: Any = "h100-sxm5-80gb", **strategy: Any) -> dict[str, Any]:
    return {
        "model": {"preset": "llama-3-8b"},
        "cluster": {"nodes": nodes, "gpus_per_node": 8, "gpu": gpu},
        "workload": {"sequence_length": 4096, "global_batch_size": 64},
        "strategy": {"framework": "fsdp2", **strategy},
        "measured": measured,
        "source": "test",
    }


UNKNOWN = {
    "name": "accelerator-x",
    "memory_gib": 96.0,
    "memory_gb_per_s": 3000.0,
    "peak_tflops": {"bf16": 800.0},
    "tdp_watts": 600.0,
}


def test_time_and_memory_are_counted_apart_and_twins_once(tmp_path: Path) -> None:
    lora = run({"step_seconds": 1.0, "peak_reserved_gib": 40.0}, nodes=4)
    lora["workload"]["fine_tuning"] = {"method": "lora"}
    records = [
        run({"step_seconds": 2.0}),
        run({"step_seconds": 3.0}),  # the same request once more
        run({"step_seconds": 2.0}, zero_stage=2, precision="fp8"),
        run({"peak_allocated_gib": 30.0}, nodes=2),
        run({"step_seconds": 2.0}, tensor_parallel_size=3),  # breaks a rule: nothing was priced
        run({"step_seconds": 2.0}, gpu=UNKNOWN),
        lora,
    ]
    records[5]["cluster"]["intra_node"] = {"kind": "nvlink", "gb_per_s": 400.0}
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    assert tomllib.loads(document(path)) == {
        "time": [
            {
                "chip": "gh100",
                "generation": "hopper",
                "framework": "fsdp2",
                "runs": 3,
                "kinds": {"dense": 2, "lora": 1},
                "precisions": {"bf16": 2, "fp8": 1},
                "zero_stages": {"2": 1, "3": 2},
                "gpus": [8, 32],
            }
        ],
        "memory": [
            {
                "chip": "gh100",
                "generation": "hopper",
                "framework": "fsdp2",
                "runs": 2,
                "kinds": {"dense": 1, "lora": 1},
                "precisions": {"bf16": 2},
                "zero_stages": {"3": 2},
                "gpus": [16, 32],
            }
        ],
    }
