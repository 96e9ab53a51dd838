"""Published figures as RunRecords: readable, cited, and converted as their sources say."""

from __future__ import annotations

from collections import Counter

import pytest

from cost_models.published_runs import PublishedSource, published_runs, published_sources, read_source
from cost_models.published_runs.figures import MEASURED
from cost_models.resolve import resolve_strategies
from cost_models.rules import violations
from cost_models.run_records import record_problem, record_strategy
from cost_models.strategy import FRAMEWORKS, partial_columns
from cost_models.units import GIB

SOURCES = published_sources()
HEAD = """\
title = "A page"
citation = "arXiv 0000.00000"
address = "https://example.org"
where = "Table 1"
family = "pages"
seen = false
conversion = "as printed"
unknown = ["vocab_size"]
clusters.a100 = { gpus_per_node = 8, gpu = "a100-sxm4-80gb" }
workload = { sequence_length = 2048, precision = "bf16" }
strategy = { framework = "megatron-lm", zero_stage = 1 }
"""
COLUMNS = 'columns = ["model", "cluster", "nodes", "global_batch_size", "tensor_parallel_size", "{figure}"]\n'
ROW = 'rows = [["{model}", "a100", 2, 64, 4, {value}]]\n'


def source(figure: str, value: str, model: str = "gpt-3-175b") -> PublishedSource:
    table = "[[tables]]\n" + COLUMNS.format(figure=figure) + ROW.format(model=model, value=value)
    return read_source("page", HEAD + table)


@pytest.mark.parametrize("source", SOURCES, ids=[source.name for source in SOURCES])
def test_every_row_is_a_run_that_the_models_accept(source: PublishedSource) -> None:
    assert source.title
    assert source.citation
    assert source.address.startswith("https://")
    assert source.where
    assert source.conversion
    for record in source.records:
        assert set(record["measured"]) <= MEASURED
        assert set(record["measured"]) - {"pipeline_stage"}, record["key"]
        problem = record_problem(record)
        table = resolve_strategies(problem, partial_columns([record_strategy(record)])).table
        assert violations(problem, table).tolist() == [0], record["key"]


def test_keys_are_unique() -> None:
    keys = Counter(record["key"] for record in published_runs())
    assert [key for key, times in keys.items() if times > 1] == []


def test_the_table_spans_gpus_and_frameworks() -> None:
    records = published_runs()
    gpus = [gpu for gpu in (record["cluster"]["gpu"] for record in records) if isinstance(gpu, str)]
    silicon = {"v100", "a100", "h100", "h200", "b200", "gb200", "gb300", "mi300x", "mi355x", "gaudi2", "ascend", "rtx"}
    assert silicon <= {gpu.split("-")[0] for gpu in gpus}
    assert {record["strategy"]["framework"] for record in records} == set(FRAMEWORKS)
    assert sum(bool(record["measured"].get("out_of_memory")) for record in records) >= 10


def test_seen_and_unseen_runs_are_told_apart() -> None:
    seen, unseen = published_runs(seen=True), published_runs(seen=False)
    assert len(unseen) >= 250
    assert {record["source"] for record in seen}.isdisjoint(record["source"] for record in unseen)
    assert len(seen) + len(unseen) == len(published_runs())


@pytest.mark.parametrize(
    ("figure", "value", "seconds"),
    [
        ("step_seconds", "1.5", 1.5),
        ("samples_per_second", "32.0", 2.0),
        ("samples_per_gpu_second", "2.0", 2.0),
        ("tokens_per_second", "65536.0", 2.0),
        ("tokens_per_gpu_second", "4096.0", 2.0),
    ],
)
def test_throughputs_become_step_times(figure: str, value: str, seconds: float) -> None:
    (record,) = source(figure, value).records
    assert record["measured"] == {"step_seconds": pytest.approx(seconds)}


def test_flop_rates_become_step_times_by_the_count_of_their_source() -> None:
    """GPT-3 of 96 layers, hidden size 12,288, 50,257 words: arXiv 2104.04473 equation 3."""
    tokens, layers, hidden, vocabulary = 64 * 2048, 96, 12288, 50257
    flops = 96 * tokens * layers * hidden**2 * (1 + 2048 / (6 * hidden) + vocabulary / (16 * layers * hidden))
    hardware, model, share = (
        source(figure, value).records[0]["measured"]["step_seconds"]
        for figure, value in (
            ("hardware_tflops_per_gpu", "150"),
            ("model_tflops_per_gpu", "112.5"),
            ("mfu_percent", "50"),
        )
    )
    assert hardware == pytest.approx(flops / (16 * 150e12))
    # Recomputation adds a third to what the model needs, the head apart, which is not computed again.
    assert model == pytest.approx(hardware, rel=0.01)
    assert share == pytest.approx(model * 112.5 / 156)


def test_gigabytes_become_gib() -> None:
    (record,) = source("peak_device_gb", "40.0").records
    assert record["measured"] == {"peak_device_gib": pytest.approx(40e9 / GIB)}


def test_a_record_says_where_it_is_from() -> None:
    (record,) = source("step_seconds", "1.5").records
    assert record["key"] == "page/gpt-3-175b-a100-2-64-4"
    assert record["model"] == {"preset": "gpt-3-175b"}
    assert record["cluster"] == {"gpus_per_node": 8, "gpu": "a100-sxm4-80gb", "nodes": 2}
    assert record["workload"] == {"sequence_length": 2048, "precision": "bf16", "global_batch_size": 64}
    assert record["strategy"] == {"framework": "megatron-lm", "zero_stage": 1, "tensor_parallel_size": 4}
    assert (record["source"], record["source_address"], record["family"]) == ("page", "https://example.org", "pages")
    assert record["unknown"] == ["vocab_size"]


def test_an_empty_string_leaves_a_field_out() -> None:
    table = '[[tables]]\ncolumns = ["model", "cluster", "nodes", "global_batch_size", "micro_batch_size", '
    table += '"step_seconds", "out_of_memory"]\nrows = [["gpt-3-175b", "a100", 2, 64, "", "", true]]\n'
    (record,) = read_source("page", HEAD + table).records
    assert record["measured"] == {"out_of_memory": True}
    assert "micro_batch_size" not in record["strategy"]


def test_a_column_that_is_no_field_is_named() -> None:
    with pytest.raises(ValueError, match="page: no field of the contract and no figure: tokens_per_fortnight"):
        source("tokens_per_fortnight", "1.0")


def test_two_rows_of_one_request_are_refused() -> None:
    twice = "[[tables]]\n" + COLUMNS.format(figure="step_seconds")
    twice += 'rows = [["gpt-3-175b", "a100", 2, 64, 4, 1.0], ["gpt-3-175b", "a100", 2, 64, 4, 2.0]]\n'
    with pytest.raises(ValueError, match="page: two rows page/gpt-3-175b-a100-2-64-4"):
        read_source("page", HEAD + twice)
