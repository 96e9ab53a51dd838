"""Templates to download: files that import as they stand, with every kind of column that a run usually has."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any, Final

RECORDS: Final[tuple[dict[str, Any], ...]] = (
    {
        "key": "example-1",
        "model": {"preset": "llama-3-8b"},
        "cluster": {"name": "prod-a", "nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
        "workload": {"sequence_length": 8192, "global_batch_size": 16, "precision": "bf16", "optimizer": "adamw"},
        "strategy": {
            "framework": "fsdp2",
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "zero_stage": 3,
            "micro_batch_size": 2,
            "activation_checkpointing": "full",
        },
        "measured": {"peak_allocated_gib": 41.5, "peak_reserved_gib": 47.3, "step_seconds": 2.31},
        "source": "template",
        "started_at": "2026-11-30T12:00:00Z",
    },
    {
        "key": "example-2",
        "model": {"preset": "llama-3-70b"},
        "cluster": {"name": "prod-a", "nodes": 2, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
        "workload": {"sequence_length": 8192, "global_batch_size": 64, "precision": "bf16", "optimizer": "adamw"},
        "strategy": {
            "framework": "megatron-lm",
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 2,
            "zero_stage": 1,
            "micro_batch_size": 1,
            "activation_checkpointing": "none",
        },
        "measured": {"out_of_memory": True},
        "source": "template",
    },
)
"""One run that was measured and one that ran out of memory; the figures are made up."""


def jsonl_template() -> str:
    """One RunRecord a line."""
    return "".join(json.dumps(record) + "\n" for record in RECORDS)


def csv_template() -> str:
    """A header of dotted names and a row a run."""
    rows = [_flat(record) for record in RECORDS]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat
