"""What is said of measured runs."""

from __future__ import annotations

from typing import Any

from benchmarks.outcomes import outcomes

RECORD: dict[str, Any] = {
    "key": "a",
    "model": {"preset": "llama-2-7b"},
    "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
    "workload": {"sequence_length": 4096, "global_batch_size": 32},
    "strategy": {"framework": "megatron-lm", "pipeline_parallel_size": 2, "zero_stage": 1},
    "source": "s",
    "measured": {"step_seconds": 3.0},
}


def test_twins_collapse_to_their_median() -> None:
    twins = [RECORD | {"key": str(seconds), "measured": {"step_seconds": seconds}} for seconds in (3.0, 9.0, 4.0)]
    (outcome,) = outcomes(twins, memory_confidence=0.5)
    assert (outcome.key, outcome.measured["step_seconds"], outcome.family) == ("3.0", 4.0, "s")


def test_the_memory_is_that_of_the_stage_that_was_measured() -> None:
    measured = [{"peak_allocated_gib": 40.0, "pipeline_stage": stage} for stage in (0, 1)]
    first, last = outcomes([RECORD | {"measured": figures} for figures in measured], memory_confidence=0.5)
    assert first.memory["peak_allocated_gib"] > 0
    assert first.memory["peak_allocated_gib"] != last.memory["peak_allocated_gib"]


def test_an_invalid_strategy_keeps_its_codes() -> None:
    broken = RECORD | {"strategy": {"framework": "ddp", "tensor_parallel_size": 2}}
    (outcome,) = outcomes([broken], memory_confidence=0.5)
    assert outcome.violations == ("tensor_unsupported",)
    assert (outcome.valid, outcome.fits, outcome.step_seconds, outcome.memory) == (False, False, None, {})


def test_a_request_that_is_not_understood_is_refused() -> None:
    (outcome,) = outcomes([RECORD | {"cluster": RECORD["cluster"] | {"gpu": "abacus"}}], memory_confidence=0.5)
    assert outcome.violations[0].startswith("request_refused: ")


def test_confidence_decides_what_fits() -> None:
    """73 of 79 GiB."""
    tight = RECORD | {
        "model": {"preset": "llama-2-13b"},
        "strategy": {"framework": "megatron-lm", "tensor_parallel_size": 2, "zero_stage": 1},
    }
    likely, surely = (outcomes([tight], memory_confidence=confidence)[0].fits for confidence in (0.5, 0.999999))
    assert (likely, surely) == (True, False)
