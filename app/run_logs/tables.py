"""CSV and JSON Lines of RunRecords.

A CSV column is the path of a field, `strategy.tensor_parallel_size`; an empty cell leaves the field out; a cell holds
what JSON would, and text without its quotes. A line of JSONL is one RunRecord.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.run_logs.errors import ImportRefused
from app.run_logs.lines import LONGEST_LINE_BYTES, decoded
from cost_models.errors import InvalidInput

MOST_ROWS: Final = 10_000
"""As many runs as `POST runs` takes in one call."""
MOST_COLUMNS: Final = 500
MOST_ERRORS: Final = 100
TEXT_COLUMNS: Final = frozenset(
    {"key", "source", "source_address", "family", "model_name", "started_at"}
    | {"model.preset", "cluster.preset", "cluster.name", "cluster.gpu.name"}
)
"""Text even where it looks like a number."""
_NUMBER: Final = re.compile(r"-?\d{1,18}")
_COLUMN: Final = re.compile(r"\w{1,60}(?:\.\w{1,60}){0,5}")
_WORDS: Final = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Row:
    """One RunRecord of a table, not checked yet, and where it stands."""

    line: int
    record: Mapping[str, Any]
    dotted: bool
    """Whether its places are columns of a CSV."""

    def place(self, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Where a field of the record stands in the file."""
        return ("file", self.line, *([".".join(map(str, loc))] if self.dotted and loc else loc))

    def message(self, loc: tuple[str | int, ...], message: str) -> str:
        """`message` with the line and the column, or field, in words."""
        name = ".".join(map(str, loc))
        kind = "column" if self.dotted else "field"
        return f"line {self.line}{f', {kind} {name}' if name else ''}: {message}"


def read_csv(lines: Iterable[bytes]) -> list[Row]:
    """Rows of a CSV with a header; raises ImportRefused naming lines and columns."""
    errors: list[InvalidInput] = []
    rows: list[Row] = []
    reader = csv.reader(_csv_text(lines), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            row = Row(reader.line_num, {}, dotted=True)
            if len(cells) > len(header):
                message = row.message((), f"has {len(cells)} cells, the header {len(header)}")
                errors.append(InvalidInput(row.place(()), "too_many_cells", message))
            else:
                rows.append(Row(row.line, _record(header, cells, row, errors), dotted=True))
            _bounded(len(rows), errors)
    except csv.Error as error:
        place = ("file", reader.line_num)
        errors.append(InvalidInput(place, "csv_invalid", f"line {reader.line_num}: {error}"))
    if not rows and not errors:
        errors.append(InvalidInput(("file",), "no_runs", "the file has a header and no runs"))
    if errors:
        raise ImportRefused(errors)
    return rows


def read_jsonl(lines: Iterable[bytes]) -> list[Row]:
    """One RunRecord a line; raises ImportRefused naming the lines that are none."""
    errors: list[InvalidInput] = []
    rows: list[Row] = []
    for number, raw in enumerate(lines, 1):
        text = decoded(raw).strip()
        if not text:
            continue
        try:
            if len(raw) >= LONGEST_LINE_BYTES:
                raise ValueError("longer than a record may be")
            record = json.loads(text, parse_constant=_refuse_constant)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            errors.append(InvalidInput(("file", number), "json_invalid", f"line {number}: {reason}"))
        else:
            rows.append(Row(number, record, dotted=False))
        _bounded(len(rows), errors)
    if not rows and not errors:
        errors.append(InvalidInput(("file",), "no_runs", "the file holds no runs"))
    if errors:
        raise ImportRefused(errors)
    return rows


def _csv_text(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        yield decoded(line)


def _check_header(header: list[str]) -> None:
    if len(header) > MOST_COLUMNS:
        message = f"line 1 has {len(header)} columns; a RunRecord has fewer than {MOST_COLUMNS} fields"
        raise ImportRefused([InvalidInput(("file", 1), "too_many_columns", message)])
    errors = []
    for index, name in enumerate(header, 1):
        place = ("file", 1, name[:60])
        if not _COLUMN.fullmatch(name):
            message = f"line 1, column {index}: {name[:60]!r} is not the path of a field"
            errors.append(InvalidInput(place, "unknown_column", message))
        elif header.index(name) != index - 1:
            errors.append(InvalidInput(place, "repeated_column", f"line 1, column {name}: it is there twice"))
        elif any(other.startswith(f"{name}.") for other in header):
            message = f"line 1, column {name}: another column is a part of it"
            errors.append(InvalidInput(place, "repeated_column", message))
        if len(errors) >= MOST_ERRORS:
            break
    if not header:
        errors.append(InvalidInput(("file",), "no_runs", "the file is empty"))
    if errors:
        raise ImportRefused(errors)


def _record(header: list[str], cells: list[str], row: Row, errors: list[InvalidInput]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=False):
        text = cell.strip()
        if not text:
            continue
        path = tuple(name.split("."))
        try:
            value = _cell(name, text)
        except (ValueError, RecursionError):
            message = row.message(path, f"{text[:60]!r} is not valid JSON")
            errors.append(InvalidInput(row.place(path), "json_invalid", message))
            continue
        section = record
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = value
    return record


def _cell(name: str, text: str) -> Any:
    """What a cell means; raises ValueError for an object or a list that is none."""
    if name in TEXT_COLUMNS or name.startswith("software."):
        return text
    if text[0] in "[{":
        return json.loads(text, parse_constant=_refuse_constant)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text) if text[-1].isdecimal() or text[-1] == "." else text
    except ValueError:
        return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _bounded(rows: int, errors: list[InvalidInput]) -> None:
    if rows > MOST_ROWS:
        message = f"more than {MOST_ROWS} runs; split the file"
        raise ImportRefused([InvalidInput(("file",), "too_many_runs", message)])
    if len(errors) >= MOST_ERRORS:
        raise ImportRefused(errors)
