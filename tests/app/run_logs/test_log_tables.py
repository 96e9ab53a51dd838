"""CSV and JSON Lines: templates, types of cells, and errors that name line and column."""

from __future__ import annotations

import csv
import io
import json

import pytest

from app.run_logs.errors import ImportRefused
from app.run_logs.tables import MOST_ROWS, read_csv, read_jsonl
from app.run_logs.template import RECORDS, csv_template, jsonl_template


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def errors(text: str, *, jsonl: bool = False) -> list[tuple[tuple[str | int, ...], str, str]]:
    with pytest.raises(ImportRefused) as refused:
        (read_jsonl if jsonl else read_csv)(lines(text))
    return [(error.loc, error.code, error.message) for error in refused.value.errors]


def test_both_templates_are_the_same_records() -> None:
    assert [row.record for row in read_csv(lines(csv_template()))] == list(RECORDS)
    assert [row.record for row in read_jsonl(lines(jsonl_template()))] == list(RECORDS)


def test_cells_have_the_type_that_json_would_give() -> None:
    cells = {
        "key": "007",
        "cluster.nodes": "4",
        "cluster.name": "12",
        "measured.step_seconds": "1e-3",
        "strategy.compile": "TRUE",
        "strategy.layers_per_stage": "[4, 4]",
        "cluster.gpu": '{"name": "x"}',
        "strategy.framework": " fsdp2 ",
        "workload.precision": "",
        "software.version": "2.10",
    }
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([cells.keys(), cells.values()])
    (row,) = read_csv(lines(file.getvalue()))
    assert row.record == {
        "key": "007",
        "cluster": {"nodes": 4, "name": "12", "gpu": {"name": "x"}},
        "measured": {"step_seconds": 0.001},
        "strategy": {"compile": True, "layers_per_stage": [4, 4], "framework": "fsdp2"},
        "software": {"version": "2.10"},
    }


def test_lines_are_those_of_the_file() -> None:
    text = 'key,software.note\na,"two\nlines"\n\nb,x\n'
    assert [(row.line, row.record["key"]) for row in read_csv(lines(text))] == [(3, "a"), (5, "b")]


def test_carriage_returns_nuls_and_a_byte_order_mark() -> None:
    assert read_csv([b"\xef\xbb\xbfkey,source\r\n", b"a\0,b\xff\r\n"])[0].record == {"key": "a", "source": "b\ufffd"}


@pytest.mark.parametrize(
    ("text", "loc", "code", "message"),
    [
        ("key\na,b\n", ("file", 2), "too_many_cells", "line 2: has 2 cells, the header 1"),
        ("key,key\na,b\n", ("file", 1, "key"), "repeated_column", "line 1, column key: it is there twice"),
        ("a b,key\n1,2\n", ("file", 1, "a b"), "unknown_column", "line 1, column 1: 'a b' is not the path of a field"),
        (
            "cluster,cluster.nodes\n{},2\n",
            ("file", 1, "cluster"),
            "repeated_column",
            "line 1, column cluster: another column is a part of it",
        ),
        (
            "strategy.layers_per_stage\n[4\n",
            ("file", 2, "strategy.layers_per_stage"),
            "json_invalid",
            "line 2, column strategy.layers_per_stage: '[4' is not valid JSON",
        ),
        ("key\n", ("file",), "no_runs", "the file has a header and no runs"),
        ("", ("file",), "no_runs", "the file is empty"),
    ],
)
def test_csv_errors(text: str, loc: tuple[str | int, ...], code: str, message: str) -> None:
    assert (loc, code, message) in errors(text)


def test_a_quote_that_is_not_closed() -> None:
    ((loc, code, _),) = errors('key\n"a\n')
    assert (loc, code) == (("file", 2), "csv_invalid")


@pytest.mark.parametrize("text", ["{", "[1]", "5", '{"a": NaN}', "[" * 100_000, '{"a": ' + "1" * 5000 + "}"])
def test_jsonl_errors_name_the_line(text: str) -> None:
    ((loc, code, message),) = errors(f'{{"key": "a"}}\n{text}\n', jsonl=True)
    assert (loc, code) == (("file", 2), "json_invalid")
    assert message.startswith("line 2: ")


def test_a_last_line_without_its_end_is_read_if_it_is_whole() -> None:
    assert [row.record for row in read_jsonl([b'{"key": "a"}'])] == [{"key": "a"}]


def test_more_rows_than_a_call_takes() -> None:
    ((_, code, _),) = errors(json.dumps({"key": "a"}) + "\n" + '{"key": "b"}\n' * MOST_ROWS, jsonl=True)
    assert code == "too_many_runs"
