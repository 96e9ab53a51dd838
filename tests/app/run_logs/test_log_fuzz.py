"""Any text is read, or refused with a reason: no reader has another outcome."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.run_logs.completion import complete
from app.run_logs.errors import ImportRefused
from app.run_logs.formats import FORMATS, READERS, recognise
from app.run_logs.lines import log_lines
from app.run_logs.tables import read_csv, read_jsonl
from cost_models.errors import InvalidInput
from tests.app.run_logs.excerpts import LOGS

WHOLE = b"".join(path.read_bytes() for path in sorted(LOGS.glob("*.log")))
LINES = sorted(set(WHOLE.splitlines(keepends=True)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SECTION = st.dictionaries(
    st.sampled_from(["nodes", "gpus_per_node", "gpu", "preset", "architecture", "hf_config", "step_seconds"])
    | st.sampled_from(["tensor_parallel_size", "pipeline_parallel_size", "sequence_length", "layers"]),
    JSON | st.sampled_from([1, 2, 8, "dgx-h100", "llama-3-8b", {"layers": 2}]),
    max_size=4,
)
CONTEXT = st.dictionaries(
    st.sampled_from(["model", "cluster", "workload", "strategy", "measured", "software", "unknown", "key"]),
    SECTION | JSON,
    max_size=5,
)


@st.composite
def mangled_line(draw: st.DrawFn) -> bytes:
    """A line of a log in which digits, marks or ends are not what they were."""
    line = bytearray(draw(st.sampled_from(LINES)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(line) - 1)))
        line[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b"", b"0", b"9" * 12, b"-1", b"nan", b"1e999", b"\0", b"\n", b"\r", b"\xff", b"[", b"}", b" "]
            )
        )
    return bytes(line)


@settings(max_examples=80)
@given(lines=st.lists(mangled_line() | st.binary(max_size=40), max_size=40), context=CONTEXT)
@pytest.mark.parametrize("format", READERS)
def test_logs(format: str, lines: list[bytes], context: dict[str, Any]) -> None:
    for run in READERS[format](log_lines(lines)):
        for every_stage in (False, True):
            with suppress(ImportRefused):
                records = complete(run, context, every_stage=every_stage)
                assert records
                assert all(record["measured"] for record in records)


@settings(max_examples=200)
@given(lines=st.lists(mangled_line() | st.binary(max_size=40), max_size=20))
def test_recognising(lines: list[bytes]) -> None:
    with suppress(InvalidInput):
        assert recognise(lines) in FORMATS


@settings(max_examples=200)
@given(lines=st.lists(st.binary(max_size=60).map(lambda line: line + b"\n"), max_size=8))
def test_tables_of_anything(lines: list[bytes]) -> None:
    for read in (read_csv, read_jsonl):
        with suppress(ImportRefused):
            assert read(lines)


@settings(max_examples=100)
@given(cells=st.lists(st.text(max_size=12), min_size=2, max_size=2))
def test_cells_of_anything(cells: list[str]) -> None:
    quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    lines = f"strategy.framework,measured.step_seconds\n{quoted}\n".encode("utf-8", "surrogatepass").splitlines(True)
    with suppress(ImportRefused):
        for row in read_csv(lines):
            assert json.loads(json.dumps(row.record)) is not None
