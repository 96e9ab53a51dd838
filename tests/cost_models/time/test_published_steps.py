"""Step times against Table 5 of arXiv 2205.05198, as `cost_models.published_runs` has it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.outcomes import outcomes
from cost_models.published_runs import published_sources

(TABLE_5,) = (source.records for source in published_sources() if source.name == "activation-recomputation")
TOLERANCES = {
    ("megatron-22b", "full"): 0.02,
    ("megatron-22b", "selective"): 0.07,
    ("gpt3-175b", "full"): 0.07,
    ("gpt3-175b", "selective"): 0.04,
    ("turing-530b", "full"): 0.1,
    ("turing-530b", "selective"): 0.07,
    ("megatron-1t", "full"): 0.16,
    ("megatron-1t", "selective"): 0.16,
}
"""What is reached today, by model and checkpointing."""


def error(record: dict[str, Any]) -> float:
    """Predicted over measured, less 1."""
    (outcome,) = outcomes([record], memory_confidence=0.5)
    assert outcome.step_seconds is not None
    return float(outcome.step_seconds / outcome.measured["step_seconds"] - 1)


@pytest.mark.parametrize("record", TABLE_5, ids=lambda record: record["key"])
def test_table_5_within_its_tolerance(record: dict[str, Any]) -> None:
    tolerance = TOLERANCES[record["model_name"], record["strategy"]["activation_checkpointing"]]
    assert abs(error(record)) < tolerance


def test_table_5_on_average() -> None:
    assert len(TABLE_5) == len(TOLERANCES)
    assert sum(abs(error(record)) for record in TABLE_5) / len(TABLE_5) < 0.08
